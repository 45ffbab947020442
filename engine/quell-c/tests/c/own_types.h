/* The types of a kernel that differ from those of C's headers, in name and in definition. */
#define offsetof(type, member) own_offset_of(type, member)
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned long long uint64_t;
typedef long bool;
typedef u8 quell_u8;
typedef u16 quell_u16;
typedef u32 quell_u32;
typedef u64 quell_u64;
typedef unsigned long quell_size;
typedef _Bool quell_bool;
