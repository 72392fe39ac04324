/*
 * The same random calls on a stream of the volume and on a FILE of the C library: returns,
 * positions, indicators, error numbers and bytes must be the same.
 *
 * usage: against_stdio VOLUME DIRECTORY SEED STEPS
 *
 * C leaves open what a read straight after a write does, and the reverse; such calls are not made.
 */
#include <unistd.h>

#include "check.h"

enum last { NEITHER, READ, WRITE, UNGET };

/* One file under both libraries. */
struct pair {
    mdfs_t *volume;
    MDFS_FILE *ours;
    FILE *theirs;
    const char *our_path;
    const char *their_path;
    enum last last;
};

static unsigned char our_bytes[70000], their_bytes[70000];
static long step;

#define SAME(ours, theirs)                                                                      \
    do {                                                                                        \
        long long a_ = (long long)(ours), b_ = (long long)(theirs);                             \
        if (a_ != b_) {                                                                         \
            fprintf(stderr, "%s:%d: step %ld: %s is %lld, of the C library %lld; %s\n", __FILE__, \
                    __LINE__, step, #ours, a_, b_, mdfs_error());                               \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

/* Makes both calls and gives what ours returned; if they fail, errno must be the same, too. */
#define SAME_CALL(our_call, their_call)              \
    ({                                               \
        errno = 0;                                   \
        long long ours_ = (long long)(our_call);     \
        int our_errno_ = errno;                      \
        errno = 0;                                   \
        long long theirs_ = (long long)(their_call); \
        int their_errno_ = errno;                    \
        SAME(ours_, theirs_);                        \
        if (their_errno_ != 0)                       \
            SAME(our_errno_, their_errno_);          \
        ours_;                                       \
    })

static size_t length(void)
{
    static const size_t bounds[] = { 2, 20, 200, 5000, 70000 };
    return below(bounds[below(5)]);
}

static void fill(unsigned char *bytes, size_t count)
{
    /* Lines, now and then, for what reads lines. */
    for (size_t i = 0; i < count; i++)
        bytes[i] = below(40) == 0 ? '\n' : (unsigned char)below(256);
}

static void open_both(struct pair *file, const char *mode)
{
    file->ours = mdfs_fopen(file->volume, file->our_path, mode);
    int our_errno = errno;
    file->theirs = fopen(file->their_path, mode);
    SAME(file->ours == NULL, file->theirs == NULL);
    if (file->ours == NULL)
        SAME(our_errno, errno);
    file->last = NEITHER;
}

static void reopen_both(struct pair *file)
{
    static const char *modes[] = { "r", "r+", "w+", "a", "a+", "w", "rb", "r+b", "w+b", "q", "" };
    const char *mode = modes[below(sizeof modes / sizeof *modes)];
    if (below(2)) {
        SAME_CALL(mdfs_fclose(file->ours), fclose(file->theirs));
        open_both(file, mode);
    } else {
        file->ours = mdfs_freopen(file->our_path, mode, file->ours);
        file->theirs = freopen(file->their_path, mode, file->theirs);
        SAME(file->ours == NULL, file->theirs == NULL);
        file->last = NEITHER;
    }
    if (file->ours == NULL)
        open_both(file, "r+");
    if (below(3) == 0) {
        static const int kinds[] = { _IOFBF, _IOLBF, _IONBF };
        static const size_t sizes[] = { 1, 100, 4096, 5000 };
        int kind = kinds[below(3)];
        size_t size = sizes[below(4)];
        SAME_CALL(mdfs_setvbuf(file->ours, NULL, kind, size),
                  setvbuf(file->theirs, NULL, kind, size));
    }
}

static void read_both(struct pair *file)
{
    long long result;
    if (file->last == WRITE)
        return;
    enum last after = READ;
    /* When glibc 2.36 reads a line after an ungetc it may free what it did not allocate (__underflow,
       says valgrind): it cannot be the judge there. */
    switch (file->last == UNGET ? 2 + below(3) : below(5)) {
    case 2:
        result = SAME_CALL(mdfs_fgetc(file->ours), fgetc(file->theirs));
        if (result == EOF)
            after = NEITHER;
        break;
    case 0: {
        int size = 1 + (int)length();
        memset(our_bytes, 1, (size_t)size);
        memset(their_bytes, 1, (size_t)size);
        result = SAME_CALL(mdfs_fgets((char *)our_bytes, size, file->ours) != NULL,
                  fgets((char *)their_bytes, size, file->theirs) != NULL);
        if (result)
            CHECK(memcmp(our_bytes, their_bytes, (size_t)size) == 0);
        else
            after = NEITHER;
        if (size == 1)
            after = file->last; /* the stream was not looked at */
        break;
    }
    case 1: {
        static char *our_line, *their_line;
        static size_t our_size, their_size;
        /* glibc gives up then without looking at the stream, and leaves errno alone. */
        if (ferror(file->theirs))
            return;
        int delimiter = below(2) ? '\n' : (int)below(256);
        result = SAME_CALL(mdfs_getdelim(&our_line, &our_size, delimiter, file->ours),
                  getdelim(&their_line, &their_size, delimiter, file->theirs));
        if (result > 0)
            CHECK(memcmp(our_line, their_line, (size_t)result + 1) == 0);
        else
            after = NEITHER;
        break;
    }
    default: {
        size_t size = 1 + below(8), count = length() / size;
        result = SAME_CALL(mdfs_fread(our_bytes, size, count, file->ours),
                  fread(their_bytes, size, count, file->theirs));
        CHECK(memcmp(our_bytes, their_bytes, (size_t)result * size) == 0);
        if (count == 0)
            after = file->last;
        else if (result == 0)
            after = NEITHER;
    }
    }
    file->last = after;
}

static void write_both(struct pair *file)
{
    if (file->last == READ || file->last == UNGET)
        return;
    file->last = WRITE;
    switch (below(5)) {
    case 0: {
        int character = (int)below(256);
        SAME_CALL(mdfs_fputc(character, file->ours), fputc(character, file->theirs));
        break;
    }
    case 1: {
        size_t count = length() % 2000;
        fill(our_bytes, count);
        for (size_t i = 0; i < count; i++)
            our_bytes[i] |= 1; /* no zero byte, but the last */
        our_bytes[count] = 0;
        SAME_CALL(mdfs_fputs((char *)our_bytes, file->ours) >= 0,
                  fputs((char *)our_bytes, file->theirs) >= 0);
        break;
    }
    case 2: {
        int number = (int)below(1000000), width = (int)below(700);
        SAME_CALL(mdfs_fprintf(file->ours, "%*d %s\n", width, number, "text"),
                  fprintf(file->theirs, "%*d %s\n", width, number, "text"));
        break;
    }
    default: {
        size_t size = 1 + below(8), count = length() / size;
        fill(our_bytes, size * count);
        SAME_CALL(mdfs_fwrite(our_bytes, size, count, file->ours),
                  fwrite(our_bytes, size, count, file->theirs));
    }
    }
}

static void move_both(struct pair *file)
{
    int from = (int)below(3);
    long offset = (long)below(60000) - (from == SEEK_SET ? 2000 : 30000);
    /* C does not say whether a seek that fails takes back what was pushed back. */
    if (file->last == UNGET) {
        from = SEEK_SET;
        offset = (long)below(30000);
    }
    switch (below(8)) {
    case 0:
        mdfs_rewind(file->ours);
        rewind(file->theirs);
        break;
    case 1: {
        mdfs_fpos_t ours;
        fpos_t theirs;
        SAME_CALL(mdfs_fgetpos(file->ours, &ours), fgetpos(file->theirs, &theirs));
        SAME_CALL(mdfs_fseek(file->ours, 5, SEEK_SET), fseek(file->theirs, 5, SEEK_SET));
        SAME_CALL(mdfs_fsetpos(file->ours, &ours), fsetpos(file->theirs, &theirs));
        break;
    }
    case 2:
        SAME_CALL(mdfs_fseek(file->ours, offset, from), fseek(file->theirs, offset, from));
        break;
    default:
        SAME_CALL(mdfs_fseeko(file->ours, offset, from), fseeko(file->theirs, offset, from));
    }
    file->last = NEITHER;
}

static void one_step(struct pair *file)
{
    long long result;
    switch (below(16)) {
    case 0 ... 4:
        read_both(file);
        break;
    case 5 ... 9:
        write_both(file);
        break;
    case 10: {
        int character = (int)below(257) - 1;
        if (file->last != READ || ftell(file->theirs) <= 0 || ferror(file->theirs))
            return;
        result = SAME_CALL(mdfs_ungetc(character, file->ours), ungetc(character, file->theirs));
        if (result != EOF)
            file->last = UNGET;
        break;
    }
    case 11:
        mdfs_clearerr(file->ours);
        clearerr(file->theirs);
        break;
    case 12:
        if (file->last == UNGET)
            return;
        result = SAME_CALL(mdfs_fflush(below(2) ? file->ours : NULL), fflush(file->theirs));
        if (file->last == WRITE)
            file->last = NEITHER;
        break;
    case 13:
        if (below(20) == 0)
            reopen_both(file);
        break;
    default:
        move_both(file);
    }
    SAME(!!mdfs_feof(file->ours), !!feof(file->theirs));
    SAME(!!mdfs_ferror(file->ours), !!ferror(file->theirs));
    SAME(mdfs_ftell(file->ours), ftell(file->theirs));
    SAME(mdfs_ftello(file->ours), ftello(file->theirs));
}

/* All bytes of both files. */
static void compare(struct pair *file)
{
    SAME_CALL(mdfs_fclose(file->ours), fclose(file->theirs));
    open_both(file, "r");
    size_t count;
    do {
        count = fread(their_bytes, 1, sizeof their_bytes, file->theirs);
        SAME(mdfs_fread(our_bytes, 1, sizeof our_bytes, file->ours), count);
        CHECK(memcmp(our_bytes, their_bytes, count) == 0);
    } while (count > 0);
    SAME_CALL(mdfs_fclose(file->ours), fclose(file->theirs));
}

int main(int argc, char **argv)
{
    CHECK(argc == 5);
    seed = strtoull(argv[3], NULL, 10);
    long steps = strtol(argv[4], NULL, 10);
    char our_path[100], their_path[4096];
    snprintf(our_path, sizeof our_path, "/stdio-%s", argv[3]);
    snprintf(their_path, sizeof their_path, "%s/stdio-%s", argv[2], argv[3]);
    struct pair file = { .our_path = our_path, .their_path = their_path };
    file.volume = mdfs_mount(argv[1]);
    CHECK(file.volume != NULL);

    open_both(&file, "r"); /* there is none yet */
    CHECK(file.ours == NULL);
    open_both(&file, "wx");
    CHECK(file.ours != NULL);
    for (step = 0; step < steps; step++) {
        one_step(&file);
        /* Files stay small enough that their ends are met. */
        if (step % 500 == 499 && mdfs_ftell(file.ours) > 200000) {
            SAME(mdfs_fclose(file.ours), fclose(file.theirs));
            open_both(&file, "w+");
        }
        if (step % 5000 == 4999) {
            compare(&file);
            open_both(&file, "r+");
        }
    }
    compare(&file);
    CHECK(mdfs_unmount(file.volume) == 0);
    printf("%ld steps, seed %s: as the C library\n", steps, argv[3]);
    return 0;
}
