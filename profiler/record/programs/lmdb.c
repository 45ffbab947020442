/* A memory-mapped database that is larger than its memory limit: three threads read random keys from 256 MB of LMDB.
 *
 * lmdb FOLDER fill: writes the database there, and lets the kernel drop it from memory.
 * lmdb FOLDER READS: each thread reads this many keys. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 3, VALUE = 3000 };
static const uint32_t KEYS = 64 << 10;

static MDB_env *env;
static MDB_dbi database;
static int reads;

static void check(int result, const char *what) {
  if (result) {
    fprintf(stderr, "%s: %s\n", what, mdb_strerror(result));
    exit(1);
  }
}

static void fill(void) {
  char value[VALUE] = {1};
  MDB_txn *txn;
  check(mdb_txn_begin(env, 0, 0, &txn), "begin");
  check(mdb_dbi_open(txn, 0, MDB_INTEGERKEY, &database), "open");
  for (uint32_t key = 0; key < KEYS; key++) {
    MDB_val k = {sizeof key, &key}, v = {VALUE, value};
    check(mdb_put(txn, database, &k, &v, MDB_APPEND), "put");
  }
  check(mdb_txn_commit(txn), "commit");
  int file;
  check(mdb_env_get_fd(env, &file), "file");
  fsync(file);
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
}

__attribute__((noinline)) static uint64_t look_up(MDB_txn *txn, uint32_t key) {
  MDB_val k = {sizeof key, &key}, v;
  check(mdb_get(txn, database, &k, &v), "get");
  return ((unsigned char *)v.mv_data)[0];
}

static void *serve(void *argument) {
  uint64_t random = (uintptr_t)argument, sum = 0;
  for (int done = 0; done < reads; done += 16) {
    MDB_txn *txn;
    check(mdb_txn_begin(env, 0, MDB_RDONLY, &txn), "begin");
    for (int i = 0; i < 16; i++) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      sum += look_up(txn, (random >> 33) % KEYS);
    }
    mdb_txn_abort(txn);
  }
  return (void *)(uintptr_t)sum;
}

int main(int count, char **words) {
  if (count < 3) return 2;
  int fills = !strcmp(words[2], "fill");
  check(mdb_env_create(&env), "create");
  check(mdb_env_set_mapsize(env, 1u << 30), "size");
  check(mdb_env_open(env, words[1], MDB_NORDAHEAD | (fills ? MDB_NOSYNC : MDB_RDONLY), 0644), words[1]);
  if (fills) {
    fill();
    mdb_env_close(env);
    return 0;
  }
  MDB_txn *txn;
  check(mdb_txn_begin(env, 0, MDB_RDONLY, &txn), "begin");
  check(mdb_dbi_open(txn, 0, MDB_INTEGERKEY, &database), "open");
  check(mdb_txn_commit(txn), "commit");
  pthread_t threads[THREADS];
  reads = atoi(words[2]);
  for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, serve, (void *)(i + 1));
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
  return 0;
}
