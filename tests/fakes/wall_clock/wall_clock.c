/* A node's wall clock that is set while programs go on: preloaded, it moves CLOCK_REALTIME by the seconds that stand
 * at the beginning of the file in WALL_CLOCK (int64, shared by all who have it). The steady clocks stay as they are.
 * A file's times are the kernel's. A wait until a moment of the wall clock is moved back, as the kernel knows the
 * true one only. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define A_DATE 1000000000 /* no steady clock is that far */

#pragma GCC visibility push(default)

static volatile int64_t none, *offset = &none;

__attribute__((constructor)) static void open_clock(void) {
    const char *path = getenv("WALL_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        offset = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *offset;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec at;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &at))
        return -1;
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *kept) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (kept)
        *kept = at.tv_sec;
    return at.tv_sec;
}

static struct timespec true_moment(const struct timespec *until) {
    struct timespec moment = *until;
    if (moment.tv_sec > A_DATE)
        moment.tv_sec -= *offset;
    return moment;
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real)
        real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real)
        real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec moment = true_moment(until);
    return real(cond, mutex, &moment);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec moment = true_moment(until);
    return real(semaphore, &moment);
}
