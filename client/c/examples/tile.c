/*
 * A matrix in one file, written by ranks that have a tile each, and read as a whole.
 *
 * usage: tile VOLUME PATH RANK RANKS    write the tile of one rank (0 to RANKS * RANKS - 1)
 *        tile VOLUME PATH check RANKS   read everything and compare
 *
 * Each tile is one call, and on the way one request: its shape travels, not a list of its rows.
 */
#include <mdfs.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = 100 };

static double value(size_t row, size_t column)
{
    return (double)row * 1e6 + (double)column;
}

static int failed(const char *what)
{
    mdfs_perror(what);
    return 1;
}

static int write_tile(int file, size_t rank, size_t ranks)
{
    /* In memory the tile has a border of one cell, as solvers have. */
    static double cells[TILE + 2][TILE + 2];
    const size_t whole[] = {ranks * TILE, ranks * TILE}, part[] = {TILE, TILE};
    const size_t first[] = {rank / ranks * TILE, rank % ranks * TILE};
    const size_t with_border[] = {TILE + 2, TILE + 2}, inside[] = {1, 1};

    for (size_t row = 0; row < TILE; row++)
        for (size_t column = 0; column < TILE; column++)
            cells[row + 1][column + 1] = value(first[0] + row, first[1] + column);
    mdfs_regions_t *tile = mdfs_regions_subarray(0, sizeof(double), 2, whole, part, first);
    mdfs_regions_t *memory =
        mdfs_regions_subarray(0, sizeof(double), 2, with_border, part, inside);
    if (tile == NULL || memory == NULL)
        return failed("the shape of a tile");
    ptrdiff_t written = mdfs_write_list(file, tile, memory, cells, sizeof cells);
    mdfs_regions_free(tile);
    mdfs_regions_free(memory);
    return written < 0 || mdfs_fdatasync(file) != 0 ? failed("a tile") : 0;
}

static int check(int file, size_t ranks)
{
    size_t cells = ranks * TILE * ranks * TILE, wrong = 0;
    double *matrix = malloc(cells * sizeof *matrix);

    if (matrix == NULL || mdfs_pread(file, matrix, cells * sizeof *matrix, 0)
                              != (ptrdiff_t)(cells * sizeof *matrix))
        return failed("the matrix");
    for (size_t i = 0; i < cells; i++)
        wrong += matrix[i] != value(i / (ranks * TILE), i % (ranks * TILE));
    free(matrix);
    printf("%zu of %zu cells are wrong\n", wrong, cells);
    return wrong != 0;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: %s VOLUME PATH RANK|check RANKS\n", argv[0]);
        return 2;
    }
    size_t ranks = strtoul(argv[4], NULL, 10);
    mdfs_t *volume = mdfs_mount(argv[1]);
    int file = volume ? mdfs_open(volume, argv[2], O_RDWR | O_CREAT, 0644) : -1;
    if (file < 0)
        return failed(argv[2]);
    int result = strcmp(argv[3], "check") == 0 ? check(file, ranks)
                                               : write_tile(file, strtoul(argv[3], NULL, 10), ranks);
    return mdfs_close(file) == 0 && mdfs_unmount(volume) == 0 ? result : failed(argv[2]);
}
