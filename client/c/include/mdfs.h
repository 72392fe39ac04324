/*
 * libmdfs: MDFS, the message-driven file system, for C and C++.
 *
 * The stdio functions do what ANSI C says of theirs, and the others what POSIX says: take a program
 * that has fopen and fwrite, add the prefix and the volume.
 *
 *     mdfs_t *volume = mdfs_mount("/srv/mdfs/volume");
 *     MDFS_FILE *file = mdfs_fopen(volume, "/run1/rank0", "w");
 *     if (file == NULL || mdfs_fwrite(data, 8, count, file) != count || mdfs_fsync(file) != 0)
 *         mdfs_perror("checkpoint");
 *     mdfs_fclose(file);
 *     mdfs_unmount(volume);
 *
 * A function that fails says so by its value and sets errno; mdfs_error() tells the story in words.
 * All functions may be called by several threads at once. After fork() the child mounts anew: what
 * its parent had opened answers ENOTCONN there. Link with -lmdfs, or ask pkg-config for mdfs.
 *
 * Made from client/c/src by `MDFS_WRITE_HEADER=1 cargo test -p mdfs-c --test header`.
 */

#ifndef MDFS_H
#define MDFS_H

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <time.h>

/*
 A transfer under way, or done and not yet returned.
 */
typedef struct mdfs_aio_t mdfs_aio_t;

/*
 A directory being listed. One thread at a time may use it.
 */
typedef struct MDFS_DIR MDFS_DIR;

/*
 An open stream.
 */
typedef struct MDFS_FILE MDFS_FILE;

/*
 Regions of a file or of memory, as they were described.
 */
typedef struct mdfs_regions_t mdfs_regions_t;

/*
 A mounted volume. Files of it are named by paths from its root.
 */
typedef struct mdfs_t mdfs_t;

/*
 A position, for mdfs_fsetpos.
 */
typedef int64_t mdfs_fpos_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The version of the library, as "0.1.0". Valid for ever.
 */
const char *mdfs_version(void);

/*
 Mounts the volume `volume`, a directory of this computer or mdfs://HOST[:PORT]/VOLUME, as the
 user of this process, through the servers that serve it (mdfs serve). A library built with the
 feature "embedded" opens a directory that is not served in this process, which then has the
 volume alone. Returns NULL on failure.
 */
mdfs_t *mdfs_mount(const char *volume);

/*
 Ends the use of a volume. If this process has opened it itself, all data are made durable first;
 a server does that in its own time, or at mdfs_sync. Fails with EBUSY, and changes nothing,
 while files or directories of it are open; after any other failure the volume is unmounted all
 the same. Returns 0, or -1 on failure.
 */
int mdfs_unmount(mdfs_t *mount);

/*
 Makes everything durable that was done in the volume, by whomever. Returns 0, or -1 on failure.
 */
int mdfs_sync(mdfs_t *mount);

/*
 In words: what the last call of this thread that failed was to do, why it could not, and what
 to do about it. Empty if none failed. Valid until the next call of this thread that fails.
 */
const char *mdfs_error(void);

/*
 Prints `prefix`, a colon and `mdfs_error` to the standard error output, as `perror` does.
 */
void mdfs_perror(const char *prefix);

/*
 Opens a stream on the file `path` of a volume, as `fopen` does; `mode` is r, w or a, with + to
 read and write, and x after w to refuse an existing file. Returns NULL on failure.
 */
MDFS_FILE *mdfs_fopen(mdfs_t *mount, const char *path, const char *mode);

/*
 Closes what `stream` had open, without regard to failures, and opens another file of the same
 volume in its place. Returns `stream`, or NULL on failure; then it is closed.
 */
MDFS_FILE *mdfs_freopen(const char *path, const char *mode, MDFS_FILE *stream);

/*
 Hands on what was written and closes the stream, which is gone whatever happens. What was
 written is durable only after mdfs_fsync. Returns 0, or EOF on failure.
 */
int mdfs_fclose(MDFS_FILE *stream);

/*
 Hands on what was written to `stream`, or to all streams if it is NULL: other programs see it
 then. Returns 0, or EOF on failure.
 */
int mdfs_fflush(MDFS_FILE *stream);

/*
 Hands on what was written to `stream` and makes the whole file durable. Returns 0, or EOF on
 failure.
 */
int mdfs_fsync(MDFS_FILE *stream);

/*
 Chooses how `stream` is buffered, as `setvbuf` does: _IOFBF, _IOLBF or _IONBF, and the size of
 the buffer in bytes (0 for the usual size, one stripe). The library allocates the buffer itself
 and leaves `buffer` alone. Returns 0, or EOF on failure.
 */
int mdfs_setvbuf(MDFS_FILE *stream, char *buffer, int mode, size_t size);

/*
 Buffers `stream` as usual, or not at all if `buffer` is NULL, which is otherwise left alone.
 */
void mdfs_setbuf(MDFS_FILE *stream, char *buffer);

/*
 Did a read meet the end of the file?
 */
int mdfs_feof(MDFS_FILE *stream);

/*
 Did a transfer fail?
 */
int mdfs_ferror(MDFS_FILE *stream);

/*
 Clears the indicators of mdfs_feof and mdfs_ferror.
 */
void mdfs_clearerr(MDFS_FILE *stream);

/*
 Keeps other threads out of `stream` until mdfs_funlockfile. May be nested.
 */
void mdfs_flockfile(MDFS_FILE *stream);

/*
 As mdfs_flockfile, if that needs no waiting. Returns 0 if `stream` is locked now.
 */
int mdfs_ftrylockfile(MDFS_FILE *stream);

/*
 Gives up one mdfs_flockfile of this thread.
 */
void mdfs_funlockfile(MDFS_FILE *stream);

/*
 Moves the position to `offset` bytes from the start (SEEK_SET), the position (SEEK_CUR) or the
 end of the file (SEEK_END); takes back mdfs_ungetc and clears mdfs_feof. Returns 0, or -1 on
 failure; then the position is as before.
 */
int mdfs_fseeko(MDFS_FILE *stream, off_t offset, int from);

/*
 As mdfs_fseeko.
 */
int mdfs_fseek(MDFS_FILE *stream, long offset, int from);

/*
 The position, in bytes from the start; -1 on failure.
 */
off_t mdfs_ftello(MDFS_FILE *stream);

/*
 As mdfs_ftello.
 */
long mdfs_ftell(MDFS_FILE *stream);

/*
 Moves the position to the start and clears both indicators.
 */
void mdfs_rewind(MDFS_FILE *stream);

/*
 Puts the position into `*position`. Returns 0, or -1 on failure.
 */
int mdfs_fgetpos(MDFS_FILE *stream, mdfs_fpos_t *position);

/*
 Moves the position to one of mdfs_fgetpos. Returns 0, or -1 on failure.
 */
int mdfs_fsetpos(MDFS_FILE *stream, const mdfs_fpos_t *position);

/*
 Reads `count` items of `size` bytes from the position on. Returns how many came as a whole:
 fewer at the end of the file or on failure only, which mdfs_feof and mdfs_ferror tell apart.
 */
size_t mdfs_fread(void *buffer, size_t size, size_t count, MDFS_FILE *stream);

/*
 Writes `count` items of `size` bytes at the position. Returns `count`, or 0 on failure; then
 the position is as before.
 */
size_t mdfs_fwrite(const void *data, size_t size, size_t count, MDFS_FILE *stream);

/*
 The next byte, or EOF at the end of the file or on failure.
 */
int mdfs_fgetc(MDFS_FILE *stream);

/*
 Writes `character` as one byte. Returns it, or EOF on failure.
 */
int mdfs_fputc(int character, MDFS_FILE *stream);

/*
 Pushes `character` back: it is the next to be read, until the next seek or write. At least 64
 can be pushed back. Returns it, or EOF on failure.
 */
int mdfs_ungetc(int character, MDFS_FILE *stream);

/*
 Reads up to the end of the line, which is kept, but at most `size` - 1 bytes, and puts a zero
 byte after them. Returns `buffer`; NULL at the end of the file, if nothing was read, or on
 failure.
 */
char *mdfs_fgets(char *buffer, int size, MDFS_FILE *stream);

/*
 Writes a string without its zero byte. Returns a number of at least 0, or EOF on failure.
 */
int mdfs_fputs(const char *string, MDFS_FILE *stream);

/*
 Reads up to and including the byte `delimiter` into `*line`, a buffer of `malloc` of `*size`
 bytes (or NULL), which is made larger as needed, and puts a zero byte after them. Returns the
 bytes read; -1 at the end of the file, if nothing was read, or on failure.
 */
ptrdiff_t mdfs_getdelim(char **line, size_t *size, int delimiter, MDFS_FILE *stream);

/*
 As mdfs_getdelim, for lines.
 */
ptrdiff_t mdfs_getline(char **line, size_t *size, MDFS_FILE *stream);

/*
 Opens a file, as `open` does: O_RDONLY, O_WRONLY or O_RDWR with any of O_CREAT, O_EXCL, O_TRUNC,
 O_APPEND, O_SYNC and O_DSYNC. `mode` has the permission bits of a new file, less those of the
 `umask`. Returns a number of at least 0, which is not one of the system's; -1 on failure.
 */
int mdfs_open(mdfs_t *mount, const char *path, int flags, mode_t mode);

/*
 The same open file under another number: they share the position. Returns it, or -1 on failure.
 */
int mdfs_dup(int descriptor);

/*
 Closes a descriptor. What was written is durable only after mdfs_fdatasync. Returns 0, or -1 on
 failure.
 */
int mdfs_close(int descriptor);

/*
 As mdfs_stat, of an open file.
 */
int mdfs_fstat(int descriptor, struct stat *out);

/*
 As mdfs_chmod, of an open file.
 */
int mdfs_fchmod(int descriptor, mode_t mode);

/*
 Starts to read `length` bytes from `offset` on. `buffer` belongs to the library until
 mdfs_aio_return. Returns NULL on failure.
 */
mdfs_aio_t *mdfs_aio_read(int descriptor, void *buffer, size_t length, off_t offset);

/*
 Starts to write `length` bytes at `offset`. They are copied: `data` may be used again at once.
 Returns NULL on failure.
 */
mdfs_aio_t *mdfs_aio_write(int descriptor, const void *data, size_t length, off_t offset);

/*
 Starts to make the file durable, with what was written by then: not with transfers that are
 still under way. Returns NULL on failure.
 */
mdfs_aio_t *mdfs_aio_fsync(int descriptor);

/*
 EINPROGRESS while the transfer is under way; then 0, or the number of its error.
 */
int mdfs_aio_error(const mdfs_aio_t *transfer);

/*
 Waits until the transfer is done and forgets it: once per transfer. Returns the bytes read or
 written (0 for mdfs_aio_fsync), or -1 on failure.
 */
ptrdiff_t mdfs_aio_return(mdfs_aio_t *transfer);

/*
 The list of `count` ranges, in this order: of `lengths[i]` bytes at `offsets[i]`. Returns NULL
 on failure. To be freed with mdfs_regions_free.
 */
mdfs_regions_t *mdfs_regions_indexed(size_t count, const off_t *offsets, const size_t *lengths);

/*
 A vector: `count` blocks of `block` bytes, the first at `start`, each `stride` bytes after the
 one before. Returns NULL on failure. To be freed with mdfs_regions_free.
 */
mdfs_regions_t *mdfs_regions_strided(off_t start, size_t block, size_t count, size_t stride);

/*
 A part of an array that begins at byte `offset` and has elements of `element` bytes: in each of
 `dimensions` the array has `array[i]` of them, and the part has `part[i]` from `first[i]` on.
 The last dimension lies together, as in C; for arrays of Fortran give the dimensions in the
 opposite order. Returns NULL on failure. To be freed with mdfs_regions_free.
 */
mdfs_regions_t *mdfs_regions_subarray(off_t offset,
                                      size_t element,
                                      size_t dimensions,
                                      const size_t *array,
                                      const size_t *part,
                                      const size_t *first);

/*
 The regions of `count` lists, one list after the other. The lists stay. Returns NULL on failure.
 To be freed with mdfs_regions_free.
 */
mdfs_regions_t *mdfs_regions_join(size_t count, const mdfs_regions_t *const *lists);

/*
 Bytes of all regions of a list together; 0 of NULL.
 */
uint64_t mdfs_regions_bytes(const mdfs_regions_t *list);

/*
 Frees a list; does nothing to NULL.
 */
void mdfs_regions_free(mdfs_regions_t *list);

/*
 Reads the regions `file`, one after the other, into the regions `memory` of `buffer`, which has
 `length` bytes; for NULL, one after the other into the buffer. Thousands of regions go in one
 request. Returns how many bytes of the list came: fewer than all if the file ends before the
 last of them; bytes past its end before others are zeros. -1 on failure. The position does not
 move.
 */
ptrdiff_t mdfs_read_list(int descriptor,
                         const mdfs_regions_t *file,
                         const mdfs_regions_t *memory,
                         void *buffer,
                         size_t length);

/*
 Writes the regions `memory` of `data`, which has `length` bytes (for NULL, its first bytes), one
 after the other to the regions `file`. Thousands of regions go in one request. Returns the bytes
 of the list, or -1 on failure; then any part of them may have been written. The position does
 not move. Where regions overlap, either byte may stay.
 */
ptrdiff_t mdfs_write_list(int descriptor,
                          const mdfs_regions_t *file,
                          const mdfs_regions_t *memory,
                          const void *data,
                          size_t length);

/*
 Cuts the file, or lengthens it by a hole. Returns 0, or -1 on failure.
 */
int mdfs_ftruncate(int descriptor, off_t size);

/*
 As Linux' `fallocate`, with the modes 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE with it, and
 FALLOC_FL_ZERO_RANGE with or without it. Mode 0 fails if there is no room now, but sets none
 aside: committed blocks are never written in place. Returns 0, or -1 on failure.
 */
int mdfs_fallocate(int descriptor, int mode, off_t offset, off_t length);

/*
 Reads `length` bytes from `offset` on. Returns how many came: fewer at the end of the file only;
 -1 on failure. The position does not move.
 */
ptrdiff_t mdfs_pread(int descriptor, void *buffer, size_t length, off_t offset);

/*
 Writes all of `length` bytes at `offset`. Returns `length`, or -1 on failure; then any part of
 them may have been written. The position does not move.
 */
ptrdiff_t mdfs_pwrite(int descriptor, const void *data, size_t length, off_t offset);

/*
 Reads from the position on and moves it. Returns the bytes read, or -1 on failure; then the
 position is as before.
 */
ptrdiff_t mdfs_read(int descriptor, void *buffer, size_t length);

/*
 Writes at the position, or at the end of the file if it was opened with O_APPEND, and moves the
 position after it. Returns `length`, or -1 on failure; then the position is as before.
 */
ptrdiff_t mdfs_write(int descriptor, const void *data, size_t length);

/*
 Moves the position, as `lseek` does, also to the next data (SEEK_DATA) or hole (SEEK_HOLE).
 Returns it, or -1 on failure; then it is as before.
 */
off_t mdfs_lseek(int descriptor, off_t offset, int from);

/*
 Makes the file durable: all that was written to it, by whomever. Returns 0, or -1 on failure:
 EIO also if something that was written through this descriptor since the last call is lost,
 because a node of the file system has restarted; write it again then.
 */
int mdfs_fdatasync(int descriptor);

/*
 Makes a directory with the permission bits `mode`, less those of the `umask`. Returns 0, or -1
 on failure.
 */
int mdfs_mkdir(mdfs_t *mount, const char *path, mode_t mode);

/*
 Removes an empty directory. Returns 0, or -1 on failure.
 */
int mdfs_rmdir(mdfs_t *mount, const char *path);

/*
 Removes a name of a file, or a symbolic link. A file without names lives on while it is open.
 Returns 0, or -1 on failure.
 */
int mdfs_unlink(mdfs_t *mount, const char *path);

/*
 As mdfs_unlink, or mdfs_rmdir if `path` is a directory. Returns 0, or -1 on failure.
 */
int mdfs_remove(mdfs_t *mount, const char *path);

/*
 Gives a file or a directory another name, replacing what has it. Returns 0, or -1 on failure.
 */
int mdfs_rename(mdfs_t *mount, const char *from, const char *to);

/*
 Gives the file `original` the further name `path`. Returns 0, or -1 on failure.
 */
int mdfs_link(mdfs_t *mount, const char *original, const char *path);

/*
 Makes a symbolic link `path` that points to `target`. Returns 0, or -1 on failure.
 */
int mdfs_symlink(mdfs_t *mount, const char *target, const char *path);

/*
 Puts where the symbolic link `path` points into `buffer`, cut at `size` bytes and without a zero
 byte, as `readlink` does. Returns the bytes put there, or -1 on failure.
 */
ptrdiff_t mdfs_readlink(mdfs_t *mount, const char *path, char *buffer, size_t size);

/*
 May the user of this process do all of `wanted` (R_OK, W_OK, X_OK; F_OK asks only whether the
 file is there) with the file `path`? Returns 0 if so, else -1, with `errno` EACCES if not.
 */
int mdfs_access(mdfs_t *mount, const char *path, int wanted);

/*
 Puts the value of the extended attribute `name` of `path` into `value`. Returns its size, also
 if `size` is 0, or -1 on failure: ERANGE if it does not fit, ENODATA if there is none.
 */
ptrdiff_t mdfs_getxattr(mdfs_t *mount,
                        const char *path,
                        const char *name,
                        void *value,
                        size_t size);

/*
 Puts the names of the extended attributes of `path` into `names`, each ended by a zero byte.
 Returns their size, also if `size` is 0, or -1 on failure: ERANGE if they do not fit.
 */
ptrdiff_t mdfs_listxattr(mdfs_t *mount, const char *path, char *names, size_t size);

/*
 Sets the extended attribute `name` of `path`; `flags` may be XATTR_CREATE or XATTR_REPLACE.
 Returns 0, or -1 on failure.
 */
int mdfs_setxattr(mdfs_t *mount,
                  const char *path,
                  const char *name,
                  const void *value,
                  size_t size,
                  int flags);

/*
 Removes the extended attribute `name` of `path`. Returns 0, or -1 on failure.
 */
int mdfs_removexattr(mdfs_t *mount, const char *path, const char *name);

/*
 What is known of the file `path`; of a symbolic link's target. Returns 0, or -1 on failure.
 */
int mdfs_stat(mdfs_t *mount, const char *path, struct stat *out);

/*
 As mdfs_stat, but of a symbolic link itself.
 */
int mdfs_lstat(mdfs_t *mount, const char *path, struct stat *out);

/*
 How much room the volume has. Returns 0, or -1 on failure.
 */
int mdfs_statvfs(mdfs_t *mount, struct statvfs *out);

/*
 Sets the permission bits of the file `path`. Returns 0, or -1 on failure.
 */
int mdfs_chmod(mdfs_t *mount, const char *path, mode_t mode);

/*
 Sets owner and group of the file `path`; (uid_t)-1 and (gid_t)-1 leave them. Returns 0, or -1 on
 failure.
 */
int mdfs_chown(mdfs_t *mount, const char *path, uid_t owner, gid_t group);

/*
 Cuts the file `path`, or lengthens it by a hole. Returns 0, or -1 on failure.
 */
int mdfs_truncate(mdfs_t *mount, const char *path, off_t size);

/*
 Sets the times of the last read and of the last change of the file `path`, as `utimensat` does:
 nanoseconds UTIME_NOW and UTIME_OMIT mean what they mean there, and a `times` of NULL means now,
 twice. Returns 0, or -1 on failure.
 */
int mdfs_utimens(mdfs_t *mount, const char *path, const struct timespec *times);

/*
 Opens the directory `path` to list it. Returns NULL on failure.
 */
MDFS_DIR *mdfs_opendir(mdfs_t *mount, const char *path);

/*
 The next entry, `.` and `..` among them; NULL at the end, and on failure, which sets `errno`.
 Valid until the next call for this directory.
 */
struct dirent *mdfs_readdir(MDFS_DIR *directory);

/*
 Where the next entry is, for mdfs_seekdir: valid also while entries come and go, and in another
 listing of the same directory. -1 on failure.
 */
long mdfs_telldir(MDFS_DIR *directory);

/*
 Goes on from a place of mdfs_telldir.
 */
void mdfs_seekdir(MDFS_DIR *directory, long position);

/*
 Starts again, and sees what has changed.
 */
void mdfs_rewinddir(MDFS_DIR *directory);

/*
 Ends a listing. Returns 0, or -1 on failure.
 */
int mdfs_closedir(MDFS_DIR *directory);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

/* Formatted output, as vfprintf and fprintf have it. */
static inline int mdfs_vfprintf(MDFS_FILE *stream, const char *format, va_list arguments)
{
    char line[512];
    char *text = line;
    va_list again;
    int length;

    va_copy(again, arguments);
    length = vsnprintf(line, sizeof line, format, again);
    va_end(again);
    if (length >= (int)sizeof line) {
        text = (char *)malloc((size_t)length + 1);
        if (text == NULL)
            return -1;
        length = vsnprintf(text, (size_t)length + 1, format, arguments);
    }
    if (length > 0 && mdfs_fwrite(text, 1, (size_t)length, stream) != (size_t)length)
        length = -1;
    if (text != line)
        free(text);
    return length;
}

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline int mdfs_fprintf(MDFS_FILE *stream, const char *format, ...)
{
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = mdfs_vfprintf(stream, format, arguments);
    va_end(arguments);
    return length;
}

#define mdfs_getc(stream) mdfs_fgetc(stream)
#define mdfs_putc(character, stream) mdfs_fputc((character), (stream))

#endif /* MDFS_H */
