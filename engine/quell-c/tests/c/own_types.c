/* Uses a kernel's own types with quell.h. With QUELL_TYPES_HEADER the header uses them, and without it the header
   includes no C header. */
#if defined(QUELL_TYPES_HEADER)
#include QUELL_TYPES_HEADER
#include "quell.h"
/* `unsigned long long` is a different type from the compiler's own 64-bit type. */
void quell_hw_load_root(u64 root, u16 tag, quell_bool keep) { (void)root, (void)tag, (void)keep; }
#else
typedef unsigned long long uint64_t;
#define NULL 0
#include "quell.h"
#endif
