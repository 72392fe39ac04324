/*
 * Heat in a square plate, with checkpoints in an MDFS volume: whenever the program is killed, the
 * next run goes on from the last whole checkpoint, and the result is the same to the last bit.
 *
 *     cc -O2 heat.c $(pkg-config --cflags --libs mdfs) -o heat
 *     ./heat /srv/mdfs/volume /heat 512 2000 100 result.dat
 *
 * usage: heat VOLUME DIRECTORY SIZE STEPS EVERY RESULT
 *
 * A checkpoint is written to a file beside the last one, made durable, and then given its name:
 * rename is whole or not done, so there is always one that is whole.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mdfs.h>

struct header {
    char magic[8];
    long size, step;
};

static const char MAGIC[8] = "heat 1\n";

static void fail(const char *what)
{
    mdfs_perror(what);
    exit(1);
}

/* Writes `plate` as it is after `step` steps. */
static void checkpoint(mdfs_t *volume, const char *directory, const double *plate, long size,
                       long step)
{
    char fresh[4096], whole[4096];
    struct header header = { .size = size, .step = step };
    size_t count = (size_t)size * (size_t)size;

    memcpy(header.magic, MAGIC, sizeof MAGIC);
    snprintf(fresh, sizeof fresh, "%s/checkpoint.new", directory);
    snprintf(whole, sizeof whole, "%s/checkpoint", directory);
    MDFS_FILE *file = mdfs_fopen(volume, fresh, "w");
    if (file == NULL || mdfs_fwrite(&header, sizeof header, 1, file) != 1 ||
        mdfs_fwrite(plate, sizeof *plate, count, file) != count || mdfs_fsync(file) != 0)
        fail("checkpoint");
    if (mdfs_fclose(file) != 0 || mdfs_rename(volume, fresh, whole) != 0)
        fail("checkpoint");
}

/* Reads the last whole checkpoint into `plate`. Returns its step; 0 if there is none. */
static long restart(mdfs_t *volume, const char *directory, double *plate, long size)
{
    char whole[4096];
    struct header header;
    size_t count = (size_t)size * (size_t)size;

    snprintf(whole, sizeof whole, "%s/checkpoint", directory);
    MDFS_FILE *file = mdfs_fopen(volume, whole, "r");
    if (file == NULL) {
        if (errno == ENOENT)
            return 0;
        fail("restart");
    }
    if (mdfs_fread(&header, sizeof header, 1, file) != 1 ||
        memcmp(header.magic, MAGIC, sizeof MAGIC) != 0 || header.size != size ||
        mdfs_fread(plate, sizeof *plate, count, file) != count) {
        fprintf(stderr, "restart: %s is no checkpoint of a plate of %ld; remove it\n", whole, size);
        exit(1);
    }
    mdfs_fclose(file);
    return header.step;
}

/* One step of time: each point becomes the mean of its four neighbours. The edges stay. */
static void spread(const double *from, double *to, long size)
{
    for (long y = 1; y < size - 1; y++)
        for (long x = 1; x < size - 1; x++) {
            const double *point = &from[y * size + x];
            to[y * size + x] = 0.25 * (point[-1] + point[1] + point[-size] + point[size]);
        }
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: heat VOLUME DIRECTORY SIZE STEPS EVERY RESULT\n");
        return 2;
    }
    const char *directory = argv[2];
    long size = atol(argv[3]), steps = atol(argv[4]), every = atol(argv[5]);
    size_t count = (size_t)size * (size_t)size;
    double *plate = calloc(count, sizeof *plate), *next = calloc(count, sizeof *next);
    if (size < 3 || steps < 1 || every < 1 || plate == NULL || next == NULL) {
        fprintf(stderr, "heat: SIZE of at least 3, STEPS and EVERY of at least 1, please\n");
        return 2;
    }

    mdfs_t *volume = mdfs_mount(argv[1]);
    if (volume == NULL)
        fail("heat");
    if (mdfs_mkdir(volume, directory, 0777) != 0 && errno != EEXIST)
        fail("heat");
    /* One hot edge. */
    for (long x = 0; x < size; x++)
        plate[x] = 100.0;
    long step = restart(volume, directory, plate, size);
    printf("from step %ld\n", step);
    fflush(stdout);
    memcpy(next, plate, count * sizeof *plate);
    while (step < steps) {
        spread(plate, next, size);
        double *done = next;
        next = plate;
        plate = done;
        step++;
        if (step % every == 0 || step == steps)
            checkpoint(volume, directory, plate, size, step);
    }
    if (mdfs_unmount(volume) != 0)
        fail("heat");

    FILE *result = fopen(argv[6], "wb");
    if (result == NULL || fwrite(plate, sizeof *plate, count, result) != count ||
        fclose(result) != 0) {
        perror(argv[6]);
        return 1;
    }
    free(plate);
    free(next);
    return 0;
}
