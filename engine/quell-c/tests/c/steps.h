/* Counts the instructions of pieces of code: a parent single-steps its child through each piece, from one int3 to the
   next. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

/* The name of the piece between the next two int3, shared by parent and child. */
static char *step_name;
#define MEASURE(name, code)             \
    do {                                \
        strcpy(step_name, name);        \
        __asm__ volatile("int3");       \
        code;                           \
        __asm__ volatile("int3");       \
    } while (0)

/* Runs the program in a child, and prints a line for each piece: its instructions, a tab, its name. */
static int count_steps(void (*program)(void))
{
    step_name = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
            _exit(9);
        raise(SIGSTOP);
        program();
        fflush(stdout);
        _exit(0);
    }
    int status;
    unsigned long steps = 0;
    bool counts = false;
    waitpid(child, &status, 0);
    while (WIFSTOPPED(status)) {
        siginfo_t info;
        if (WSTOPSIG(status) == SIGTRAP && !ptrace(PTRACE_GETSIGINFO, child, NULL, &info) && info.si_code == SI_KERNEL) {
            /* We don't count the int3 itself. */
            if (counts)
                printf("%lu\t%s\n", steps - 1, step_name);
            counts = !counts, steps = 0;
        } else if (WSTOPSIG(status) == SIGTRAP) {
            steps++;
        } else if (WSTOPSIG(status) != SIGSTOP) {
            return printf("signal %d\n", WSTOPSIG(status)), 1;
        }
        if (ptrace(counts ? PTRACE_SINGLESTEP : PTRACE_CONT, child, NULL, NULL))
            return 1;
        waitpid(child, &status, 0);
    }
    return WEXITSTATUS(status);
}
