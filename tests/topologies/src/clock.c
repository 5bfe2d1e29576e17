#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Shifts the wall clock by CLOCK_SHIFT_MS. The monotonic clock stays as it is. */
static long shift(void) {
  static long ms = -1;
  if (ms == -1) { const char *text = getenv("CLOCK_SHIFT_MS"); ms = text ? atol(text) : 0; }
  return ms;
}
int clock_gettime(clockid_t clock, struct timespec *at) {
  int result = syscall(SYS_clock_gettime, clock, at);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    long ns = at->tv_nsec + (shift() % 1000) * 1000000L;
    at->tv_sec += shift() / 1000 + (ns >= 1000000000L) - (ns < 0);
    at->tv_nsec = ns - ((ns >= 1000000000L) - (ns < 0)) * 1000000000L;
  }
  return result;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  (void)zone;
  int result = clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return result;
}
time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
