/* What the C programs of the tests share: an end that names the place, and random numbers. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mdfs.h"

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: %s is not so; errno %d (%s), mdfs_error: %s\n",        \
                    __FILE__, __LINE__, #condition, errno, strerror(errno), mdfs_error()); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

/* The call fails with this value and this number, and says why in words. */
#define CHECK_FAILS(call, value, number)     \
    do {                                     \
        errno = 0;                           \
        CHECK((call) == (value));            \
        CHECK(errno == (number));            \
        CHECK(mdfs_error()[0] != '\0');      \
    } while (0)

static uint64_t seed;

/* splitmix64: below `bound`, which is not zero. */
static inline uint64_t below(uint64_t bound)
{
    uint64_t z = (seed += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % bound;
}

#endif
