// A Vulkan driver that is lavapipe until its n-th submission, and then goes wrong on purpose. SHIM_FAULT says how: "segv:7".
// SHIM_REAL is lavapipe's library. SHIM_ONCE is a file that is made when it goes wrong; where it is, nothing goes wrong any
// more. SHIM_COUNT is a file that holds the number of submissions of the process that made the last one.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
typedef void (*Function)(void);
typedef Function (*GetAddress)(void *, const char *);
typedef int32_t (*Submit)(void *queue, uint32_t count, const void *submits, uint64_t fence);
typedef int32_t (*Allocate)(void *device, const void *info, const void *allocator, uint64_t *memory);
typedef int32_t (*Map)(void *device, uint64_t memory, uint64_t offset, uint64_t size, uint32_t flags, void **data);
typedef void (*Free)(void *device, uint64_t memory, const void *allocator);
typedef int32_t (*Wait)(void *queue);

static GetAddress real_instance, real_device;
static Submit real_submit, real_submit2;
static Allocate real_allocate;
static Map real_map;
static Free real_free;
static Wait real_wait;
static int submissions;

static struct { uint64_t memory, bytes; void *at; } mapped[4096];

static void *library(void) {
    static void *opened;
    if (!opened) {
        const char *path = getenv("SHIM_REAL");
        opened = dlopen(path ? path : "libvulkan_lvp.so", RTLD_NOW | RTLD_LOCAL);
        if (!opened) fprintf(stderr, "shim: %s\n", dlerror());
    }
    return opened;
}

static void note(int count) {
    const char *path = getenv("SHIM_COUNT");
    if (!path) return;
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0) return;
    dprintf(file, "%d", count);
    close(file);
}

// What goes wrong at this submission; nothing, mostly.
static const char *fault(void) {
    int count = __sync_add_and_fetch(&submissions, 1);
    note(count);
    const char *text = getenv("SHIM_FAULT");
    const char *colon = text ? strchr(text, ':') : NULL;
    if (!colon || atoi(colon + 1) != count) return NULL;
    const char *once = getenv("SHIM_ONCE");
    if (once) {
        int file = open(once, O_WRONLY | O_CREAT | O_EXCL, 0600);
        if (file < 0) return NULL;
        close(file);
    }
    return text;
}

static int is(const char *fault, const char *name) { return !strncmp(fault, name, strlen(name)); }

static int32_t submit(Submit real, void *queue, uint32_t count, const void *submits, uint64_t fence) {
    const char *wrong = fault();
    if (!wrong) return real(queue, count, submits, fence);
    if (is(wrong, "segv")) *(volatile int *)16 = 1;
    if (is(wrong, "abort")) abort();
    if (is(wrong, "exit")) exit(0);
    if (is(wrong, "kill")) raise(SIGKILL);
    if (is(wrong, "hang")) for (;;) pause();
    if (is(wrong, "garbage")) return -1000987654;
    if (is(wrong, "lost")) return -4;
    if (is(wrong, "leak")) for (;;) {
        // Touched, so that it is really taken.
        memset(malloc(64 << 20), 1, 64 << 20);
        usleep(10000);
    }
    int32_t result = real(queue, count, submits, fence);
    if (is(wrong, "nan")) {
        real_wait(queue);
        for (int i = 0; i < 4096; i++)
            if (mapped[i].at) memset(mapped[i].at, 0xff, mapped[i].bytes);
    }
    return result;
}

static int32_t our_submit(void *queue, uint32_t count, const void *submits, uint64_t fence) {
    return submit(real_submit, queue, count, submits, fence);
}

static int32_t our_submit2(void *queue, uint32_t count, const void *submits, uint64_t fence) {
    return submit(real_submit2, queue, count, submits, fence);
}

static int32_t our_allocate(void *device, const void *info, const void *allocator, uint64_t *memory) {
    int32_t result = real_allocate(device, info, allocator, memory);
    if (!result) for (int i = 0; i < 4096; i++) if (!mapped[i].memory) {
        mapped[i].memory = *memory;
        // VkMemoryAllocateInfo: a type, a pointer, then the size.
        memcpy(&mapped[i].bytes, (const char *)info + 16, 8);
        break;
    }
    return result;
}

static int32_t our_map(void *device, uint64_t memory, uint64_t offset, uint64_t size, uint32_t flags, void **data) {
    int32_t result = real_map(device, memory, offset, size, flags, data);
    if (!result && !offset) for (int i = 0; i < 4096; i++) if (mapped[i].memory == memory) mapped[i].at = *data;
    return result;
}

static void our_free(void *device, uint64_t memory, const void *allocator) {
    for (int i = 0; i < 4096; i++) if (memory && mapped[i].memory == memory) memset(&mapped[i], 0, sizeof mapped[i]);
    real_free(device, memory, allocator);
}

static Function our_device(void *device, const char *name);

static Function instead(const char *name, Function real) {
    if (!real) return NULL;
    if (!strcmp(name, "vkGetDeviceProcAddr")) { real_device = (GetAddress)real; return (Function)our_device; }
    if (!strcmp(name, "vkQueueSubmit")) { real_submit = (Submit)real; return (Function)our_submit; }
    if (!strcmp(name, "vkQueueSubmit2") || !strcmp(name, "vkQueueSubmit2KHR")) {
        real_submit2 = (Submit)real;
        return (Function)our_submit2;
    }
    if (!strcmp(name, "vkAllocateMemory")) { real_allocate = (Allocate)real; return (Function)our_allocate; }
    if (!strcmp(name, "vkMapMemory")) { real_map = (Map)real; return (Function)our_map; }
    if (!strcmp(name, "vkFreeMemory")) { real_free = (Free)real; return (Function)our_free; }
    if (!strcmp(name, "vkQueueWaitIdle")) real_wait = (Wait)real;
    return real;
}

static Function our_device(void *device, const char *name) { return instead(name, real_device(device, name)); }

EXPORT Function vk_icdGetInstanceProcAddr(void *instance, const char *name) {
    if (!real_instance) {
        void *lavapipe = library();
        if (!lavapipe) return NULL;
        *(void **)&real_instance = dlsym(lavapipe, "vk_icdGetInstanceProcAddr");
    }
    return instead(name, real_instance(instance, name));
}

EXPORT int32_t vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version) {
    int32_t (*real)(uint32_t *);
    void *lavapipe = library();
    if (!lavapipe) return -3;
    *(void **)&real = dlsym(lavapipe, "vk_icdNegotiateLoaderICDInterfaceVersion");
    return real ? real(version) : -3;
}

EXPORT Function vk_icdGetPhysicalDeviceProcAddr(void *instance, const char *name) {
    GetAddress real;
    void *lavapipe = library();
    if (!lavapipe) return NULL;
    *(void **)&real = dlsym(lavapipe, "vk_icdGetPhysicalDeviceProcAddr");
    return real ? real(instance, name) : NULL;
}
