#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Looks names up in the folder NAMES: the file of a name has milliseconds, and then addresses, or `fails`, or nothing. Writes each
   answer to its file `log`. */
typedef int look_up(const char *, const char *, const struct addrinfo *, struct addrinfo **);

static void note(const char *folder, const char *name, const char *answer) {
  char path[512], line[512];
  snprintf(path, sizeof path, "%s/log", folder);
  int length = snprintf(line, sizeof line, "%d %s %s\n", (int)getpid(), name, answer);
  int log = open(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
  if (log < 0 || write(log, line, length) != length) abort();
  close(log);
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
  look_up *real = (look_up *)dlsym(RTLD_NEXT, "getaddrinfo");
  const char *folder = getenv("NAMES");
  char path[512], answer[256] = "";
  int delay = 0, outcome = 0;
  if (!name || !folder) return real(name, service, hints, found);
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "r");
  if (!file) {
    note(folder, name, "unlisted");
    return real(name, service, hints, found);
  }
  if (fscanf(file, "%d %255[^\n]", &delay, answer) < 1) abort();
  fclose(file);
  usleep(delay * 1000);
  struct addrinfo **end = found;
  *end = NULL;
  char words[256];
  strcpy(words, answer);
  for (char *word = strtok(words, " "); word && !outcome; word = strtok(NULL, " ")) {
    outcome = strcmp(word, "fails") ? real(word, service, hints, end) : EAI_AGAIN;
    while (!outcome && *end) end = &(*end)->ai_next;
  }
  note(folder, name, answer);
  return outcome;
}
