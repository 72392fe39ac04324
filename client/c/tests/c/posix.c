/*
 * The functions that are not stdio: names, attributes, listing, descriptors, transfers in the
 * background, threads, fork, exit.
 *
 * usage: posix VOLUME
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "check.h"

static mdfs_t *volume;

static void mounting(const char *path)
{
    CHECK_FAILS(mdfs_mount("/nowhere/at/all"), NULL, ENOENT);
    CHECK_FAILS(mdfs_mount(NULL), NULL, EFAULT);
    volume = mdfs_mount(path);
    CHECK(volume != NULL);
    CHECK(strlen(mdfs_version()) >= 5);
}

static void names(void)
{
    struct stat stat, again;
    char target[100];

    umask(027);
    CHECK(mdfs_mkdir(volume, "/names", 0777) == 0);
    CHECK_FAILS(mdfs_mkdir(volume, "/names", 0777), -1, EEXIST);
    CHECK(mdfs_stat(volume, "/names", &stat) == 0);
    CHECK(S_ISDIR(stat.st_mode) && (stat.st_mode & 07777) == 0750 && stat.st_nlink == 2);
    CHECK(stat.st_uid == geteuid() && stat.st_gid == getegid());

    int file = mdfs_open(volume, "/names/a", O_RDWR | O_CREAT | O_EXCL, 0666);
    CHECK(file >= 0);
    CHECK_FAILS(mdfs_open(volume, "/names/a", O_RDWR | O_CREAT | O_EXCL, 0666), -1, EEXIST);
    CHECK(mdfs_pwrite(file, "0123456789", 10, 0) == 10);
    CHECK(mdfs_close(file) == 0);
    CHECK(mdfs_stat(volume, "/names/a", &stat) == 0);
    CHECK(S_ISREG(stat.st_mode) && (stat.st_mode & 07777) == 0640 && stat.st_size == 10);

    CHECK(mdfs_link(volume, "/names/a", "/names/b") == 0);
    CHECK(mdfs_stat(volume, "/names/b", &again) == 0);
    CHECK(again.st_ino == stat.st_ino && again.st_nlink == 2);
    CHECK(mdfs_symlink(volume, "b", "/names/link") == 0);
    CHECK(mdfs_readlink(volume, "/names/link", target, sizeof target) == 1 && target[0] == 'b');
    CHECK(mdfs_lstat(volume, "/names/link", &again) == 0 && S_ISLNK(again.st_mode));
    CHECK(mdfs_stat(volume, "/names/link", &again) == 0 && again.st_ino == stat.st_ino);
    CHECK_FAILS(mdfs_readlink(volume, "/names/a", target, sizeof target), -1, EINVAL);

    CHECK(mdfs_rename(volume, "/names/b", "/names/c") == 0);
    CHECK_FAILS(mdfs_stat(volume, "/names/b", &again), -1, ENOENT);
    CHECK_FAILS(mdfs_rmdir(volume, "/names"), -1, ENOTEMPTY);
    CHECK_FAILS(mdfs_unlink(volume, "/names"), -1, EISDIR);
    CHECK_FAILS(mdfs_rmdir(volume, "/names/a"), -1, ENOTDIR);
    CHECK(mdfs_unlink(volume, "/names/c") == 0);

    CHECK(mdfs_chmod(volume, "/names/a", 0604) == 0);
    CHECK(mdfs_truncate(volume, "/names/a", 4) == 0);
    CHECK_FAILS(mdfs_truncate(volume, "/names/a", -1), -1, EINVAL);
    struct timespec times[2] = { { 1000, 5 }, { 0, UTIME_OMIT } };
    CHECK(mdfs_utimens(volume, "/names/a", times) == 0);
    CHECK(mdfs_stat(volume, "/names/a", &again) == 0);
    CHECK((again.st_mode & 07777) == 0604 && again.st_size == 4 && again.st_nlink == 1);
    CHECK(again.st_atim.tv_sec == 1000 && again.st_atim.tv_nsec == 5);
    CHECK(again.st_mtim.tv_sec > 1000000);
    times[0].tv_nsec = 1000000000;
    CHECK_FAILS(mdfs_utimens(volume, "/names/a", times), -1, EINVAL);
    CHECK(mdfs_access(volume, "/names/a", R_OK | W_OK) == 0);
    CHECK_FAILS(mdfs_access(volume, "/names/none", F_OK), -1, ENOENT);
    CHECK_FAILS(mdfs_access(volume, "/names/a", X_OK), -1, EACCES);

    CHECK(mdfs_setxattr(volume, "/names/a", "user.colour", "red", 3, XATTR_CREATE) == 0);
    CHECK_FAILS(mdfs_setxattr(volume, "/names/a", "user.colour", "red", 3, XATTR_CREATE), -1,
                EEXIST);
    CHECK(mdfs_getxattr(volume, "/names/a", "user.colour", NULL, 0) == 3);
    CHECK(mdfs_getxattr(volume, "/names/a", "user.colour", target, sizeof target) == 3);
    CHECK(memcmp(target, "red", 3) == 0);
    CHECK_FAILS(mdfs_getxattr(volume, "/names/a", "user.colour", target, 2), -1, ERANGE);
    CHECK(mdfs_listxattr(volume, "/names/a", target, sizeof target) == 12);
    CHECK(strcmp(target, "user.colour") == 0);
    CHECK(mdfs_removexattr(volume, "/names/a", "user.colour") == 0);
    CHECK_FAILS(mdfs_getxattr(volume, "/names/a", "user.colour", NULL, 0), -1, ENODATA);

    CHECK(mdfs_remove(volume, "/names/link") == 0);
    CHECK(mdfs_remove(volume, "/names/a") == 0);
    CHECK(mdfs_remove(volume, "/names") == 0);
    CHECK_FAILS(mdfs_remove(volume, "/names"), -1, ENOENT);

    struct statvfs space;
    CHECK(mdfs_statvfs(volume, &space) == 0);
    CHECK(space.f_blocks > 0 && space.f_bfree <= space.f_blocks && space.f_namemax == 255);
}

enum { ENTRIES = 3000 };

static void listing(void)
{
    static unsigned char seen[ENTRIES];
    char name[300];
    long after = -1;
    int dots = 0, count = 0;
    struct dirent *entry;

    CHECK(mdfs_mkdir(volume, "/listing", 0700) == 0);
    for (int i = 0; i < ENTRIES; i++) {
        snprintf(name, sizeof name, "/listing/entry-%d", i);
        CHECK(mdfs_symlink(volume, "x", name) == 0);
    }
    CHECK_FAILS(mdfs_opendir(volume, "/listing/entry-0/x"), NULL, ENOENT);
    MDFS_DIR *directory = mdfs_opendir(volume, "/listing");
    CHECK(directory != NULL);
    while (errno = 0, (entry = mdfs_readdir(directory)) != NULL) {
        if (entry->d_name[0] == '.') {
            CHECK(entry->d_type == DT_DIR && entry->d_ino != 0);
            dots++;
            continue;
        }
        int number = -1;
        CHECK(sscanf(entry->d_name, "entry-%d", &number) == 1 && number < ENTRIES);
        CHECK(entry->d_type == DT_LNK && !seen[number]);
        seen[number] = 1;
        if (++count == ENTRIES / 2)
            after = mdfs_telldir(directory);
    }
    CHECK(errno == 0 && dots == 2 && count == ENTRIES);
    mdfs_seekdir(directory, after);
    for (count = 0; mdfs_readdir(directory) != NULL; count++)
        ;
    CHECK(count == ENTRIES - ENTRIES / 2);
    mdfs_rewinddir(directory);
    CHECK(strcmp(mdfs_readdir(directory)->d_name, ".") == 0);
    CHECK_FAILS(mdfs_unmount(volume), -1, EBUSY);
    CHECK(mdfs_closedir(directory) == 0);
}

static void descriptors(void)
{
    char bytes[20];
    struct stat stat;

    CHECK_FAILS(mdfs_open(volume, "/d", O_RDWR, 0), -1, ENOENT);
    CHECK_FAILS(mdfs_open(volume, "/d", O_RDONLY | O_TRUNC, 0), -1, EINVAL);
    CHECK_FAILS(mdfs_open(volume, "/", O_WRONLY, 0), -1, EISDIR);
    int made = mdfs_open(volume, "/made", O_RDONLY | O_CREAT, 0644);
    CHECK(made >= 0);
    CHECK_FAILS(mdfs_write(made, "x", 1), -1, EBADF);
    CHECK(mdfs_read(made, bytes, 5) == 0);
    int file = mdfs_open(volume, "/d", O_RDWR | O_CREAT, 0600);
    CHECK(file > made);
    CHECK(mdfs_write(file, "hello ", 6) == 6 && mdfs_write(file, "world", 5) == 5);
    CHECK(mdfs_lseek(file, 0, SEEK_CUR) == 11 && mdfs_lseek(file, -5, SEEK_END) == 6);
    CHECK(mdfs_read(file, bytes, sizeof bytes) == 5 && memcmp(bytes, "world", 5) == 0);
    CHECK_FAILS(mdfs_lseek(file, -20, SEEK_CUR), -1, EINVAL);
    CHECK(mdfs_pread(file, bytes, 5, 0) == 5 && memcmp(bytes, "hello", 5) == 0);
    CHECK_FAILS(mdfs_pread(file, bytes, 5, -1), -1, EINVAL);
    CHECK_FAILS(mdfs_pread(file, NULL, 5, 0), -1, EFAULT);
    CHECK(mdfs_lseek(file, 0, SEEK_CUR) == 11);
    int copy = mdfs_dup(file);
    CHECK(copy > file && mdfs_lseek(copy, 2, SEEK_SET) == 2);
    CHECK(mdfs_lseek(file, 0, SEEK_CUR) == 2 && mdfs_close(copy) == 0);
    CHECK(mdfs_ftruncate(file, 1 << 20) == 0 && mdfs_fstat(file, &stat) == 0);
    CHECK(stat.st_size == 1 << 20);
    CHECK(mdfs_lseek(file, 0, SEEK_DATA) == 0 && mdfs_lseek(file, 0, SEEK_HOLE) > 0);
    CHECK_FAILS(mdfs_lseek(file, 1 << 20, SEEK_DATA), -1, ENXIO);
    CHECK(mdfs_fallocate(file, 0, 0, 2 << 20) == 0 && mdfs_fstat(file, &stat) == 0);
    CHECK(stat.st_size == 2 << 20);
    CHECK_FAILS(mdfs_fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), -1, EOPNOTSUPP);
    CHECK(mdfs_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 6) == 0);
    CHECK(mdfs_pread(file, bytes, 11, 0) == 11 && memcmp(bytes, "\0\0\0\0\0\0world", 11) == 0);
    CHECK(mdfs_fchmod(file, 0640) == 0 && mdfs_fdatasync(file) == 0);

    int end = mdfs_open(volume, "/d", O_WRONLY | O_APPEND | O_SYNC, 0);
    CHECK(mdfs_write(end, "!", 1) == 1 && mdfs_lseek(end, 0, SEEK_CUR) == (2 << 20) + 1);
    /* A file without names lives on while it is open. */
    CHECK(mdfs_unlink(volume, "/d") == 0);
    CHECK(mdfs_pread(file, bytes, 2, 2 << 20) == 1 && bytes[0] == '!');
    CHECK(mdfs_close(end) == 0 && mdfs_close(file) == 0 && mdfs_close(made) == 0);
    CHECK_FAILS(mdfs_close(file), -1, EBADF);
    CHECK_FAILS(mdfs_read(-1, bytes, 1), -1, EBADF);
}

static void lists(void)
{
    /* A column of a matrix of 300 x 200 numbers, out of a matrix with a border. */
    enum { ROWS = 300, COLUMNS = 200, BORDER = 1 };
    static double inside[ROWS + 2 * BORDER][COLUMNS + 2 * BORDER], again[ROWS + 2][COLUMNS + 2];
    const size_t whole[] = {ROWS, COLUMNS}, part[] = {ROWS, 50}, first[] = {0, 100};
    const size_t memory_whole[] = {ROWS + 2, COLUMNS + 2}, memory_first[] = {1, 101};
    struct stat stat;

    for (int row = 0; row < ROWS + 2; row++)
        for (int column = 0; column < COLUMNS + 2; column++)
            inside[row][column] = row * 1000 + column;
    int file = mdfs_open(volume, "/matrix", O_RDWR | O_CREAT, 0600);
    mdfs_regions_t *column = mdfs_regions_subarray(0, sizeof(double), 2, whole, part, first);
    mdfs_regions_t *memory =
        mdfs_regions_subarray(0, sizeof(double), 2, memory_whole, part, memory_first);
    CHECK(column != NULL && memory != NULL);
    CHECK(mdfs_regions_bytes(column) == ROWS * 50 * sizeof(double));
    const ssize_t bytes = ROWS * 50 * sizeof(double);
    CHECK(mdfs_write_list(file, column, memory, inside, sizeof inside) == bytes);
    CHECK(mdfs_read_list(file, column, memory, again, sizeof again) == bytes);
    for (int row = 0; row < ROWS + 2; row++)
        for (int at = 0; at < COLUMNS + 2; at++) {
            int is_in = row >= 1 && row <= ROWS && at >= 101 && at < 151;
            CHECK(again[row][at] == (is_in ? inside[row][at] : 0));
        }
    CHECK(mdfs_fstat(file, &stat) == 0);
    CHECK(stat.st_size == ((ROWS - 1) * COLUMNS + 150) * (off_t)sizeof(double));

    /* The same column, number by number: packed. */
    double packed[ROWS], number;
    mdfs_regions_t *numbers =
        mdfs_regions_strided(100 * sizeof(double), sizeof(double), ROWS, COLUMNS * sizeof(double));
    CHECK(mdfs_read_list(file, numbers, NULL, packed, sizeof packed) == sizeof packed);
    for (int row = 0; row < ROWS; row++)
        CHECK(packed[row] == inside[row + 1][101]);
    CHECK(mdfs_pread(file, &number, 8, (7 * COLUMNS + 100) * 8) == 8 && number == packed[7]);

    const off_t offsets[] = {8, 0, 1 << 20};
    const size_t lengths[] = {3, 2, 5};
    mdfs_regions_t *ranges = mdfs_regions_indexed(3, offsets, lengths);
    const mdfs_regions_t *both[] = {ranges, numbers};
    mdfs_regions_t *joined = mdfs_regions_join(2, both);
    CHECK(mdfs_regions_bytes(joined) == 10 + sizeof packed);
    char text[10] = "";
    CHECK(mdfs_write_list(file, ranges, NULL, "abcdeFGHIJ", 10) == 10);
    CHECK(mdfs_pread(file, text, 5, 1 << 20) == 5 && memcmp(text, "FGHIJ", 5) == 0);
    CHECK(mdfs_ftruncate(file, 1 << 20) == 0);
    /* Past the end there is nothing, and the rest comes. */
    CHECK(mdfs_read_list(file, ranges, NULL, text, 10) == 5 && memcmp(text, "abcde", 5) == 0);

    CHECK_FAILS(mdfs_write_list(file, ranges, NULL, "short", 5), -1, EINVAL);
    CHECK_FAILS(mdfs_read_list(file, ranges, column, text, 10), -1, EINVAL);
    CHECK_FAILS(mdfs_read_list(file, NULL, NULL, text, 10), -1, EFAULT);
    CHECK_FAILS(mdfs_read_list(-1, ranges, NULL, text, 10), -1, EBADF);
    CHECK_FAILS(mdfs_regions_strided(-1, 1, 1, 1), NULL, EINVAL);
    CHECK_FAILS(mdfs_regions_strided(0, 8, 0, 8), NULL, EINVAL);
    CHECK_FAILS(mdfs_regions_subarray(0, 8, 2, whole, whole, first), NULL, EINVAL);
    CHECK_FAILS(mdfs_regions_indexed(3, NULL, lengths), NULL, EFAULT);
    mdfs_regions_free(column), mdfs_regions_free(memory), mdfs_regions_free(numbers);
    mdfs_regions_free(ranges), mdfs_regions_free(joined), mdfs_regions_free(NULL);
    CHECK(mdfs_close(file) == 0);
}

enum { TRANSFERS = 32, PIECE = 100000 };

static void background(void)
{
    static unsigned char pieces[TRANSFERS][PIECE];
    mdfs_aio_t *transfers[TRANSFERS];
    int number;

    int file = mdfs_open(volume, "/background", O_RDWR | O_CREAT, 0600);
    for (int i = 0; i < TRANSFERS; i++) {
        memset(pieces[i], i + 1, PIECE);
        transfers[i] = mdfs_aio_write(file, pieces[i], PIECE, (off_t)i * PIECE);
        CHECK(transfers[i] != NULL);
        memset(pieces[i], 0, PIECE); /* it was copied */
    }
    for (int i = 0; i < TRANSFERS; i++)
        CHECK(mdfs_aio_return(transfers[i]) == PIECE);
    CHECK(mdfs_aio_return(mdfs_aio_fsync(file)) == 0);
    for (int i = 0; i < TRANSFERS; i++)
        transfers[i] = mdfs_aio_read(file, pieces[i], PIECE, (off_t)i * PIECE + PIECE / 2);
    for (int i = TRANSFERS - 1; i >= 0; i--) {
        while ((number = mdfs_aio_error(transfers[i])) == EINPROGRESS)
            usleep(100);
        CHECK(number == 0);
        CHECK(mdfs_aio_return(transfers[i]) == (i < TRANSFERS - 1 ? PIECE : PIECE / 2));
        CHECK(pieces[i][0] == i + 1);
        if (i < TRANSFERS - 1)
            CHECK(pieces[i][PIECE - 1] == i + 2);
    }
    CHECK(mdfs_close(file) == 0);
    file = mdfs_open(volume, "/background", O_RDONLY, 0);
    CHECK_FAILS(mdfs_aio_write(file, "x", 1, 0), NULL, EBADF);
    CHECK(mdfs_close(file) == 0);
    file = mdfs_open(volume, "/background", O_WRONLY, 0);
    transfers[0] = mdfs_aio_read(file, pieces[0], 1, 0);
    while (mdfs_aio_error(transfers[0]) == EINPROGRESS)
        usleep(100);
    CHECK(mdfs_aio_error(transfers[0]) == EBADF);
    CHECK_FAILS(mdfs_aio_return(transfers[0]), -1, EBADF);
    CHECK(mdfs_close(file) == 0);
}

enum { THREADS = 4, LINES = 2000 };

static void *write_lines(void *stream)
{
    for (int i = 0; i < LINES; i++) {
        mdfs_flockfile(stream);
        CHECK(mdfs_ftrylockfile(stream) == 0);
        mdfs_fputs("one ", stream);
        mdfs_fputs("line\n", stream);
        mdfs_funlockfile(stream);
        mdfs_funlockfile(stream);
    }
    return NULL;
}

static void threads(void)
{
    pthread_t ids[THREADS];
    char line[100];
    int count = 0;

    MDFS_FILE *stream = mdfs_fopen(volume, "/threads", "w+");
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&ids[i], NULL, write_lines, stream) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(ids[i], NULL) == 0);
    mdfs_rewind(stream);
    for (; mdfs_fgets(line, sizeof line, stream) != NULL; count++)
        CHECK(strcmp(line, "one line\n") == 0);
    CHECK(count == THREADS * LINES);
    CHECK(mdfs_fclose(stream) == 0);
}

/* The child may use nothing of its parent's, and leaves the parent's buffers alone. */
static void forking(void)
{
    char bytes[100];
    int status;

    MDFS_FILE *stream = mdfs_fopen(volume, "/fork", "w+");
    int file = mdfs_open(volume, "/fork", O_RDWR, 0);
    CHECK(mdfs_fputs("of the parent", stream) >= 0);
    pid_t child = fork();
    if (child == 0) {
        struct stat stat;
        CHECK_FAILS(mdfs_fputs("of the child", stream), EOF, ENOTCONN);
        CHECK_FAILS(mdfs_read(file, bytes, 1), -1, ENOTCONN);
        CHECK_FAILS(mdfs_stat(volume, "/fork", &stat), -1, ENOTCONN);
        CHECK_FAILS(mdfs_opendir(volume, "/"), NULL, ENOTCONN);
        CHECK_FAILS(mdfs_unmount(volume), -1, ENOTCONN);
        CHECK_FAILS(mdfs_close(file), -1, ENOTCONN);
        CHECK_FAILS(mdfs_fclose(stream), EOF, ENOTCONN);
        CHECK(mdfs_fflush(NULL) == 0);
        exit(7); /* with all that happens at exit */
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK(mdfs_fflush(stream) == 0);
    CHECK(mdfs_pread(file, bytes, sizeof bytes, 0) == 13);
    CHECK(memcmp(bytes, "of the parent", 13) == 0);
    CHECK(mdfs_close(file) == 0 && mdfs_fclose(stream) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    mounting(argv[1]);
    names();
    listing();
    descriptors();
    lists();
    background();
    threads();
    forking();
    CHECK(mdfs_sync(volume) == 0);
    CHECK(mdfs_unmount(volume) == 0);
    CHECK_FAILS(mdfs_unmount(volume), -1, EBADF);

    /* What is open at the end is written out, as C has it; the test reads it. */
    mounting(argv[1]);
    MDFS_FILE *left = mdfs_fopen(volume, "/left-open", "w");
    CHECK(mdfs_fprintf(left, "%s", "flushed at exit") == 15);
    puts("as POSIX has it");
    return 0;
}
