// Loaded into User-mode Linux (see guest.rs). Its kernel keeps 2,696 bytes of a process's extended registers;
// hosts with wider ones (AMX) have some 11,000, hand out the first part, and take back nothing but the whole:
// "put_fp_registers" fails, and the guest's first process dies. So what comes back is filled up here with what
// the process has.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

// More than any host has.
static __thread char whole[1 << 16];

typedef long (*Ptrace)(enum __ptrace_request, ...);

long ptrace(enum __ptrace_request request, ...) {
    static Ptrace next;
    if (!next) next = (Ptrace)dlsym(RTLD_NEXT, "ptrace");
    va_list rest;
    va_start(rest, request);
    int process = va_arg(rest, int);
    void *address = va_arg(rest, void *);
    void *data = va_arg(rest, void *);
    va_end(rest);
    if (request != PTRACE_SETREGSET || address != (void *)NT_X86_XSTATE)
        return next(request, process, address, data);
    struct iovec *given = data, filled = {whole, sizeof whole};
    long told = next(PTRACE_GETREGSET, process, address, &filled);
    if (told < 0) return told;
    memcpy(whole, given->iov_base, given->iov_len < filled.iov_len ? given->iov_len : filled.iov_len);
    return next(PTRACE_SETREGSET, process, address, &filled);
}
