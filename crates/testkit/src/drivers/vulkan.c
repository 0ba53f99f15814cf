/* A Vulkan driver that is good for one thing, the trial's kernel, unless FAKE_VULKAN tells it to go wrong.
 * Without Vulkan's headers: the few structures are written at their known offsets. */
#ifndef FAKE_VARIABLE
#define FAKE_VARIABLE "FAKE_VULKAN"
#endif
#include <signal.h>
#include "fault.h"

#define LOADER_MAGIC 0x01CDC0DE
#define MAX_DEVICES 300
#define SAME_UUID "0123456789abcdef"

typedef int32_t result;
typedef uint64_t handle;
typedef struct { uintptr_t magic; uint32_t number; } object;
typedef struct chain { uint32_t type; struct chain *next; } chain;
typedef struct { uint64_t size; unsigned char *bytes; } buffer;

static object devices[MAX_DEVICES];
static buffer *bound[2];

static void put32(void *at, size_t offset, uint32_t value) { memcpy((char *)at + offset, &value, 4); }
static void put64(void *at, size_t offset, uint64_t value) { memcpy((char *)at + offset, &value, 8); }
static uint64_t get64(const void *at, size_t offset) { uint64_t v; memcpy(&v, (const char *)at + offset, 8); return v; }

static object *make(void)
{
    object *made = calloc(1, sizeof *made);
    made->magic = LOADER_MAGIC;
    return made;
}

static result create_instance(const void *info, const void *a, object **instance)
{
    (void)info, (void)a;
    fake_stage("create-instance");
    if (fake_is("refuse"))
        return -9;
    *instance = make();
    return 0;
}

static uint32_t device_count(void) { return fake_is("none") ? 0 : fake_is("many") ? MAX_DEVICES : 1; }

static result enumerate(object *instance, uint32_t *count, object **out)
{
    (void)instance;
    fake_stage("enumerate");
    uint32_t have = device_count();
    if (!out) {
        *count = have;
        return 0;
    }
    uint32_t give = *count < have ? *count : have;
    for (uint32_t i = 0; i < give; i++) {
        devices[i].magic = LOADER_MAGIC;
        devices[i].number = i;
        out[i] = &devices[i];
    }
    *count = give;
    return give < have ? 5 : 0;
}

/* How large a kernel may be, in VkPhysicalDeviceLimits. */
static const struct { size_t offset; uint32_t value; } limits[] = {
    {32, 128}, {76, 16}, {92, 128}, {108, 16},       /* push constants, storage buffers */
    {216, 16384}, {220, 65535}, {224, 65535}, {228, 65535}, /* shared memory, workgroups */
    {232, 128}, {236, 128}, {240, 128}, {244, 64},   /* invocations */
};

static void properties(object *device, void *out)
{
    int absurd = fake_is("absurd");
    memset(out, absurd ? 0xff : 0, 824);
    put32(out, 0, absurd ? 0xffffffff : (1u << 22) | (3u << 12)); /* Vulkan 1.3 */
    put32(out, 4, 7);
    put32(out, 8, 0x10de);
    put32(out, 12, 0x1234);
    put32(out, 16, absurd ? 77 : 2); /* a discrete GPU */
    if (!absurd)
        snprintf((char *)out + 20, 256, "Fake GPU %u", device->number);
    put32(out, 296 + 28, absurd ? 0 : 1u << 30); /* the range of a storage buffer */
    if (!absurd)
        for (size_t limit = 0; limit < sizeof limits / sizeof *limits; limit++)
            put32(out, 296 + limits[limit].offset, limits[limit].value);
}

static void properties2(object *device, chain *out)
{
    int absurd = fake_is("absurd");
    properties(device, (char *)out + 16);
    for (chain *one = out->next; one; one = one->next) {
        char *at = (char *)one + 16;
        switch (one->type) {
        case 1000071004: /* identity */
            memcpy(at, SAME_UUID, 16);
            at[15] = (char)(at[15] + device->number);
            break;
        case 1000168000: put64(at, 8, absurd ? ~0ull : 1ull << 30); break;
        case 1000094000: put32(at, 0, absurd ? 0xffffffff : 32); break;
        case 1000225000: put32(at, 0, absurd ? 0xffffffff : 32), put32(at, 4, absurd ? 0 : 32); break;
        case 1000196000:
            memset(at + 4, absurd ? 0xff : 0, 512);
            if (!absurd)
                strcpy(at + 4, "fake driver"), strcpy(at + 260, "1.2.3");
            break;
        case 1000212000: put32(at, 0, 0), put32(at, 4, 0x3b), put32(at, 8, device->number), put32(at, 12, 0); break;
        }
    }
}

static void features(object *device, void *out) { (void)device; memset(out, 0, 220); }
static void features2(object *device, chain *out) { (void)device; memset((char *)out + 16, 0, 220); }

static void memory_properties(object *device, void *out)
{
    (void)device;
    /* Not where the device's own properties are asked for: the loader does that itself, while it enumerates. */
    fake_stage("get-properties");
    memset(out, 0, 520);
    put32(out, 0, fake_is("absurd") ? 0xffffffff : 1);
    put32(out, 4, 1 | 2 | 4); /* on the device, visible, coherent */
    put32(out, 260, fake_is("absurd") ? 0xffffffff : 1);
    put64(out, 264, fake_is("lying") || fake_is("absurd") ? ~0ull >> 1 : 8ull << 30);
    put32(out, 272, 1);
}
static void memory_properties2(object *device, chain *out) { memory_properties(device, (char *)out + 16); }

static void queue_families(object *device, uint32_t *count, void *out)
{
    (void)device;
    if (out && *count) {
        memset(out, 0, 24);
        put32(out, 0, 2); /* computes */
        put32(out, 4, 1);
    }
    *count = 1;
}

static result extensions(object *device, const char *layer, uint32_t *count, char *out)
{
    (void)device, (void)layer;
    if (out && *count) {
        memset(out, 0, 260);
        strcpy(out, "VK_EXT_pci_bus_info");
    }
    *count = 1;
    return 0;
}
static result instance_extensions(const char *layer, uint32_t *count, char *out) { (void)layer, (void)out; *count = 0; return 0; }

static result create_device(object *physical, const void *info, const void *a, object **device)
{
    (void)physical, (void)info, (void)a;
    fake_stage("create-device");
    *device = make();
    return 0;
}
static void get_queue(object *device, uint32_t family, uint32_t index, object **queue)
{
    (void)device, (void)family, (void)index;
    *queue = make();
}

static result create_buffer(object *device, const void *info, const void *a, handle *out)
{
    (void)device, (void)a;
    buffer *made = calloc(1, sizeof *made);
    made->size = get64(info, 24);
    *out = (handle)(uintptr_t)made;
    return 0;
}
static void requirements(object *device, handle which, void *out)
{
    (void)device;
    put64(out, 0, ((buffer *)(uintptr_t)which)->size);
    put64(out, 8, 16);
    put32(out, 16, 1);
}
static result allocate(object *device, const void *info, const void *a, handle *out)
{
    (void)device, (void)a;
    fake_stage("allocate");
    *out = (handle)(uintptr_t)calloc(1, get64(info, 16));
    return 0;
}
static result bind(object *device, handle which, handle memory, uint64_t offset)
{
    (void)device;
    ((buffer *)(uintptr_t)which)->bytes = (unsigned char *)(uintptr_t)memory + offset;
    return 0;
}
static result map(object *device, handle memory, uint64_t offset, uint64_t size, uint32_t flags, void **out)
{
    (void)device, (void)size, (void)flags;
    *out = (unsigned char *)(uintptr_t)memory + offset;
    return 0;
}

static result create_any(object *device, const void *info, const void *a, handle *out)
{
    (void)device, (void)info, (void)a;
    *out = (handle)(uintptr_t)calloc(1, 16);
    return 0;
}
static result create_pipelines(object *device, handle cache, uint32_t count, const void *infos, const void *a, handle *out)
{
    (void)device, (void)cache, (void)count, (void)infos, (void)a;
    fake_stage("build-kernel");
    *out = (handle)(uintptr_t)calloc(1, 16);
    return 0;
}
static result allocate_one(object *device, const void *info, handle *out) { (void)device, (void)info; *out = 1; return 0; }
static result allocate_commands(object *device, const void *info, object **out) { (void)device, (void)info; *out = make(); return 0; }
static void update_sets(object *device, uint32_t count, const char *writes, uint32_t copies, const void *c)
{
    (void)device, (void)copies, (void)c;
    /* A write is 64 bytes; the binding is at 24, the pointer to the buffer's range at 48. */
    for (uint32_t i = 0; i < count && i < 2; i++)
        bound[i] = (buffer *)(uintptr_t)get64((const void *)(uintptr_t)get64(writes + 64 * i, 48), 0);
}
static result submit(object *queue, uint32_t count, const void *work, handle fence)
{
    (void)queue, (void)count, (void)work, (void)fence;
    fake_stage("dispatch");
    for (uint32_t i = 0; i < bound[0]->size / 4; i++) {
        uint32_t number;
        memcpy(&number, bound[0]->bytes + 4 * i, 4);
        number = fake_is("wrong") && i == 17 ? 0 : number * 3 + i;
        memcpy(bound[1]->bytes + 4 * i, &number, 4);
    }
    return 0;
}
static result nothing(void) { return 0; }

static void *lookup(const char *name)
{
    static const struct { const char *name; void *function; } table[] = {
        {"vkCreateInstance", create_instance}, {"vkEnumeratePhysicalDevices", enumerate},
        {"vkGetPhysicalDeviceProperties", properties}, {"vkGetPhysicalDeviceProperties2", properties2},
        {"vkGetPhysicalDeviceFeatures", features}, {"vkGetPhysicalDeviceFeatures2", features2},
        {"vkGetPhysicalDeviceMemoryProperties", memory_properties},
        {"vkGetPhysicalDeviceMemoryProperties2", memory_properties2},
        {"vkGetPhysicalDeviceQueueFamilyProperties", queue_families},
        {"vkEnumerateDeviceExtensionProperties", extensions},
        {"vkEnumerateInstanceExtensionProperties", instance_extensions},
        {"vkCreateDevice", create_device}, {"vkGetDeviceQueue", get_queue}, {"vkCreateBuffer", create_buffer},
        {"vkGetBufferMemoryRequirements", requirements}, {"vkAllocateMemory", allocate},
        {"vkBindBufferMemory", bind}, {"vkMapMemory", map}, {"vkCreateDescriptorSetLayout", create_any},
        {"vkCreatePipelineLayout", create_any}, {"vkCreateShaderModule", create_any},
        {"vkCreateComputePipelines", create_pipelines}, {"vkCreateDescriptorPool", create_any},
        {"vkAllocateDescriptorSets", allocate_one}, {"vkUpdateDescriptorSets", update_sets},
        {"vkCreateCommandPool", create_any}, {"vkAllocateCommandBuffers", allocate_commands},
        {"vkCreateFence", create_any}, {"vkQueueSubmit", submit},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(name, table[i].name) == 0)
            return table[i].function;
    /* What is left of Vulkan 1.0 does nothing well; extensions are not there. */
    size_t length = strlen(name);
    int extension = length > 3 && strspn(name + length - 3, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 3;
    return extension || strstr(name, "2") ? NULL : (void *)nothing;
}

static void *device_proc(object *device, const char *name) { (void)device; return lookup(name); }

FAKE_EXPORT void *vk_icdGetInstanceProcAddr(object *instance, const char *name)
{
    (void)instance;
    return strcmp(name, "vkGetDeviceProcAddr") == 0 ? (void *)device_proc : lookup(name);
}

FAKE_EXPORT result vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version)
{
    *version = *version < 5 ? *version : 5;
    return 0;
}
