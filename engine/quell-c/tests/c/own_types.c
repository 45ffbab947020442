/* A kernel's own types beside quell.h: with QUELL_TYPES_HEADER the header uses them, and without it no header of C. */
#if defined(QUELL_TYPES_HEADER)
#include QUELL_TYPES_HEADER
#include "quell.h"
/* `unsigned long long` is another type than the compiler's own for 64 bits. */
void quell_hw_load_root(u64 root, u16 tag, quell_bool keep) { (void)root, (void)tag, (void)keep; }
#else
typedef unsigned long long uint64_t;
#define NULL 0
#include "quell.h"
#endif
