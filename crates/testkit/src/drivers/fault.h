/* What a fake driver does wrong, and where. The variable holds KIND:STAGE, such as crash:enumerate, or KIND alone for lies.
 * FAKE_TOUCHED names a file that is made as soon as the library is opened. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#define FAKE_EXPORT __declspec(dllexport)
static void fake_throw(void) { RaiseException(0xE06D7363, EXCEPTION_NONCONTINUABLE, 0, NULL); }
#else
#define FAKE_EXPORT __attribute__((visibility("default")))
#include <fenv.h>
#include <pthread.h>
#include <sys/resource.h>
void fake_throw(void);
int feenableexcept(int);

/* Crashes while somebody else computes. */
static void *fake_later(void *nothing)
{
    volatile uintptr_t nowhere = 64;
    usleep(50000);
    *(volatile int *)nowhere = 1;
    return nothing;
}

/* Leaves the process's group and session, and its parent. */
static void fake_daemon(void)
{
    if (fork() != 0)
        return;
    setsid();
    if (fork() == 0)
        sleep(600);
    _exit(0);
}
#endif

static const char *fake_mode(void)
{
    const char *mode = getenv(FAKE_VARIABLE);
    return mode ? mode : "";
}

static int fake_is(const char *mode) { return strcmp(fake_mode(), mode) == 0; }

static void fake_write(int fd, const char *text)
{
    if (write(fd, text, strlen(text)) < 0)
        return;
}

static void fake_stage(const char *stage)
{
    const char *mode = fake_mode();
    const char *colon = strchr(mode, ':');
    if (!colon || strcmp(colon + 1, stage) != 0)
        return;
    size_t length = (size_t)(colon - mode);
#define KIND(name) (length == strlen(name) && strncmp(mode, name, length) == 0)
    if (KIND("crash")) {
        volatile uintptr_t nowhere = 64;
        *(volatile int *)nowhere = 1;
    } else if (KIND("abort")) {
        abort();
    } else if (KIND("throw")) {
        fake_throw();
    } else if (KIND("hang")) {
        for (;;)
            sleep(1);
    } else if (KIND("spin")) {
        for (volatile int i = 0;; i++)
            ;
    } else if (KIND("exit0")) {
        exit(0);
    } else if (KIND("exit3")) {
        exit(3);
    } else if (KIND("endless")) {
        for (;;)
            fake_write(1, "a driver that never stops talking\n");
    } else if (KIND("garbage")) {
        /* Also into every other descriptor, since the report goes through one of them. */
        for (int fd = 1; fd < 32; fd++)
            fake_write(fd, "\xff\x00{\"version\":2,\"nonce\":\"\"}\n{{{\n");
    } else if (KIND("stdout")) {
        for (int i = 0; i < 1000; i++)
            fake_write(1, "{\"version\":2,\"message\":\"done\"}\n");
#ifndef _WIN32
    } else if (KIND("fork")) {
        if (fork() == 0)
            sleep(600);
        for (;;)
            sleep(1);
    } else if (KIND("kill")) {
        kill(getpid(), 9);
    } else if (KIND("later")) {
        pthread_t thread;
        pthread_create(&thread, NULL, fake_later, NULL);
    } else if (KIND("fpe")) {
        feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT);
    } else if (KIND("rlimit")) {
        /* Nobody may have more memory or start another thread. */
        struct rlimit memory = {64 << 20, 64 << 20}, threads = {0, 0};
        setrlimit(RLIMIT_AS, &memory);
        setrlimit(RLIMIT_NPROC, &threads);
    } else if (KIND("daemon")) {
        fake_daemon();
#endif
    }
#undef KIND
}

__attribute__((constructor)) static void fake_begin(void)
{
    const char *touched = getenv("FAKE_TOUCHED");
    if (touched) {
        FILE *file = fopen(touched, "a");
        if (file)
            fclose(file);
    }
    fake_stage("load-driver");
}
