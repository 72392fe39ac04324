/*
 * Heat in a square plate by many processes, with checkpoints in an MDFS volume that a server serves:
 * whenever the job is killed, the next run goes on from the last whole checkpoint, and the result is the
 * same to the last bit, for any number of processes.
 *
 *     mdfs serve /srv/mdfs/volume &
 *     mpicc -O2 heat_mpi.c $(pkg-config --cflags --libs mdfs) -o heat_mpi
 *     mpiexec -n 4 ./heat_mpi shared /srv/mdfs/volume /heat 512 2000 100 result.dat
 *
 * usage: heat_mpi own|shared VOLUME DIRECTORY SIZE STEPS EVERY RESULT
 *
 * own: each rank writes its rows to a file of its own. Two sets of files take turns, and a small file says
 * which of them is whole. A restart needs as many processes as before.
 * shared: all ranks write their rows to one file, each at its place, and then it gets its name.
 *
 * In both cases all ranks make their rows durable before rank 0 renames: rename is whole or not done, so
 * there is always one checkpoint that is whole.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mdfs.h>
#include <mpi.h>

struct header {
    char magic[8];
    long size, step, ranks;
};

static const char MAGIC[8] = "heatmpi";

/* What every rank knows. Its rows are `first` to `first + rows - 1`; the plate of a rank has one row more
 * on each side, that of its neighbour. */
struct job {
    mdfs_t *volume;
    const char *directory;
    int shared, rank, ranks;
    long size, first, rows;
};

static void fail(const char *what)
{
    mdfs_perror(what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void path_of(const struct job *job, char path[4096], const char *name, long number)
{
    snprintf(path, 4096, "%s/%s", job->directory, name);
    if (number >= 0)
        snprintf(path + strlen(path), 4096 - strlen(path), "%ld.%d", number, job->rank);
}

/* Writes all of `data` at `offset`. */
static void put(int file, const void *data, size_t length, off_t offset)
{
    if (mdfs_pwrite(file, data, length, offset) != (ptrdiff_t)length)
        fail("checkpoint");
}

static int open_or_fail(const struct job *job, const char *path, int flags)
{
    int file = mdfs_open(job->volume, path, flags, 0666);
    if (file < 0)
        fail(path);
    return file;
}

static void close_durable(int file)
{
    if (mdfs_fdatasync(file) != 0 || mdfs_close(file) != 0)
        fail("checkpoint");
}

/* Writes the rows of all ranks as they are after `step` steps, to checkpoint number `number`. */
static void checkpoint(const struct job *job, const double *plate, long step, long number)
{
    char fresh[4096], whole[4096], rows[4096];
    struct header header = { .size = job->size, .step = step, .ranks = job->ranks };
    size_t length = (size_t)(job->rows * job->size) * sizeof *plate;
    const double *mine = plate + job->size;

    memcpy(header.magic, MAGIC, sizeof MAGIC);
    path_of(job, fresh, "checkpoint.new", -1);
    path_of(job, whole, "checkpoint", -1);
    if (job->rank == 0) {
        int file = open_or_fail(job, fresh, O_WRONLY | O_CREAT | O_TRUNC);
        put(file, &header, sizeof header, 0);
        close_durable(file);
    }
    if (job->shared) {
        MPI_Barrier(MPI_COMM_WORLD); /* the file is there */
        int file = open_or_fail(job, fresh, O_WRONLY);
        put(file, mine, length, (off_t)sizeof header + job->first * job->size * (off_t)sizeof *plate);
        close_durable(file);
    } else {
        path_of(job, rows, "rows.", number % 2);
        int file = open_or_fail(job, rows, O_WRONLY | O_CREAT | O_TRUNC);
        put(file, mine, length, 0);
        close_durable(file);
    }
    MPI_Barrier(MPI_COMM_WORLD); /* all rows are durable */
    if (job->rank == 0 && mdfs_rename(job->volume, fresh, whole) != 0)
        fail("checkpoint");
    MPI_Barrier(MPI_COMM_WORLD); /* the checkpoint before may be overwritten */
}

/* Reads this rank's rows of the last whole checkpoint. Returns its step; 0 if there is none. */
static long restart(const struct job *job, double *plate, long every)
{
    char whole[4096], rows[4096];
    struct header header;
    size_t length = (size_t)(job->rows * job->size) * sizeof *plate;
    off_t place = (off_t)sizeof header + job->first * job->size * (off_t)sizeof *plate;

    path_of(job, whole, "checkpoint", -1);
    int file = mdfs_open(job->volume, whole, O_RDONLY, 0);
    if (file < 0) {
        if (errno == ENOENT)
            return 0;
        fail("restart");
    }
    if (mdfs_pread(file, &header, sizeof header, 0) != (ptrdiff_t)sizeof header ||
        memcmp(header.magic, MAGIC, sizeof MAGIC) != 0 || header.size != job->size ||
        (!job->shared && header.ranks != job->ranks)) {
        fprintf(stderr, "restart: %s is no checkpoint of this job; remove it\n", whole);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (!job->shared) {
        mdfs_close(file);
        path_of(job, rows, "rows.", header.step / every % 2);
        file = open_or_fail(job, rows, O_RDONLY);
        place = 0;
    }
    if (mdfs_pread(file, plate + job->size, length, place) != (ptrdiff_t)length)
        fail("restart");
    mdfs_close(file);
    return header.step;
}

/* Brings the rows of the neighbours. */
static void exchange(const struct job *job, double *plate)
{
    int above = job->rank > 0 ? job->rank - 1 : MPI_PROC_NULL;
    int below = job->rank < job->ranks - 1 ? job->rank + 1 : MPI_PROC_NULL;
    double *top = plate + job->size, *bottom = plate + job->rows * job->size;
    int count = (int)job->size;

    MPI_Sendrecv(top, count, MPI_DOUBLE, above, 0, bottom + job->size, count, MPI_DOUBLE, below, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(bottom, count, MPI_DOUBLE, below, 1, plate, count, MPI_DOUBLE, above, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* One step of time: each point becomes the mean of its four neighbours. The edges stay. */
static void spread(const struct job *job, const double *from, double *to)
{
    for (long row = 1; row <= job->rows; row++) {
        long y = job->first + row - 1;
        if (y == 0 || y == job->size - 1)
            continue;
        for (long x = 1; x < job->size - 1; x++) {
            const double *point = &from[row * job->size + x];
            to[row * job->size + x] =
                0.25 * (point[-1] + point[1] + point[-job->size] + point[job->size]);
        }
    }
}

/* Rank 0 writes all rows to a file of this computer, one rank after the other. */
static void write_result(const struct job *job, double *plate, const char *path)
{
    long count = job->rows * job->size;
    if (job->rank != 0) {
        MPI_Send(plate + job->size, (int)count, MPI_DOUBLE, 0, 2, MPI_COMM_WORLD);
        return;
    }
    FILE *result = fopen(path, "wb");
    if (result == NULL || fwrite(plate + job->size, sizeof *plate, (size_t)count, result) != (size_t)count)
        fail(path);
    for (int rank = 1; rank < job->ranks; rank++) {
        MPI_Status status;
        int length;
        MPI_Probe(rank, 2, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_DOUBLE, &length);
        double *rows = malloc((size_t)length * sizeof *rows);
        if (rows == NULL)
            fail(path);
        MPI_Recv(rows, length, MPI_DOUBLE, rank, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (fwrite(rows, sizeof *rows, (size_t)length, result) != (size_t)length)
            fail(path);
        free(rows);
    }
    if (fclose(result) != 0)
        fail(path);
}

int main(int argc, char **argv)
{
    struct job job = { 0 };
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.ranks);
    int shared = argc == 8 && strcmp(argv[1], "shared") == 0;
    if (argc != 8 || (!shared && strcmp(argv[1], "own") != 0)) {
        fprintf(stderr, "usage: heat_mpi own|shared VOLUME DIRECTORY SIZE STEPS EVERY RESULT\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    long steps = atol(argv[5]), every = atol(argv[6]);
    job.shared = shared;
    job.directory = argv[3];
    job.size = atol(argv[4]);
    job.first = job.rank * job.size / job.ranks;
    job.rows = (job.rank + 1) * job.size / job.ranks - job.first;
    size_t count = (size_t)((job.rows + 2) * job.size);
    double *plate = calloc(count, sizeof *plate), *next = calloc(count, sizeof *next);
    if (job.rows < 1 || steps < 1 || every < 1 || plate == NULL || next == NULL) {
        fprintf(stderr, "heat_mpi: SIZE of at least a row for each rank, STEPS and EVERY of 1\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }

    job.volume = mdfs_mount(argv[2]);
    if (job.volume == NULL)
        fail("heat_mpi");
    if (mdfs_mkdir(job.volume, job.directory, 0777) != 0 && errno != EEXIST)
        fail("heat_mpi");
    /* One hot edge. */
    for (long x = 0; job.rank == 0 && x < job.size; x++)
        plate[job.size + x] = 100.0;
    long step = restart(&job, plate, every);
    MPI_Barrier(MPI_COMM_WORLD); /* all have read it */
    if (job.rank == 0) {
        printf("from step %ld\n", step);
        fflush(stdout);
    }
    memcpy(next, plate, count * sizeof *plate);
    while (step < steps) {
        exchange(&job, plate);
        spread(&job, plate, next);
        double *done = next;
        next = plate;
        plate = done;
        step++;
        if (step % every == 0)
            checkpoint(&job, plate, step, step / every);
    }
    if (mdfs_unmount(job.volume) != 0)
        fail("heat_mpi");
    write_result(&job, plate, argv[7]);
    free(plate);
    free(next);
    MPI_Finalize();
    return 0;
}
