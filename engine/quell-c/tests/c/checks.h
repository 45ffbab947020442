/* Compares values in programs that check the interface. The first difference ends the program. */
#include <stdio.h>
#include <stdlib.h>

static unsigned asked;

static void same(unsigned long long is, unsigned long long should, const char *what, int line)
{
    asked++;
    if (is != should) {
        printf("line %d: %s is %llu, not %llu\n", line, what, is, should);
        exit(1);
    }
}
#define IS(what, should) same((unsigned long long)(what), (unsigned long long)(should), #what, __LINE__)
#define REFUSED(call, status) IS(call, QUELL_STATUS_##status)
#define DONE(call) IS(call, QUELL_STATUS_OK)
