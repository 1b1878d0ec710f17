package store

// #include <stdlib.h>
// #ifdef __GLIBC__
// #include <malloc.h>
// static void be_frugal(void) {
// 	mallopt(M_ARENA_MAX, 1);
// 	mallopt(M_TRIM_THRESHOLD, 1 << 20);
// }
// #else
// static void be_frugal(void) {}
// #endif
import "C"

import "sync"

// frugal keeps the C library's allocator, which only SQLite uses, from giving
// every thread a heap of its own and from handing pages back to the kernel after
// each query to fetch them for the next one. Half of what an idle program holds
// would be such heaps. It has to come before the first connection.
var frugal = sync.OnceFunc(func() { C.be_frugal() })
