/* A libcuda that is good for one thing, the trial's kernel, unless FAKE_CUDA tells it to go wrong. */
#define FAKE_VARIABLE "FAKE_CUDA"
#include <signal.h>
#include "fault.h"

#define SAME_UUID "0123456789abcdef"
#define API FAKE_EXPORT

API int cuInit(unsigned flags)
{
    (void)flags;
    fake_stage("create-instance");
    const char *mode = fake_mode();
    return strncmp(mode, "code", 4) == 0 ? atoi(mode + 4) : 0;
}
API int cuDriverGetVersion(int *version) { *version = fake_is("old") ? 10020 : 13000; return 0; }
API int cuDeviceGetCount(int *count)
{
    fake_stage("enumerate");
    *count = fake_is("none") ? 0 : fake_is("many") ? 300 : 1;
    return 0;
}
API int cuDeviceGet(int *device, int index) { *device = index; return 0; }
API int cuDeviceGetName(char *name, int length, int device)
{
    fake_stage("get-properties");
    if (fake_is("absurd"))
        memset(name, 0x1b, (size_t)length);
    else
        snprintf(name, (size_t)length, "Fake GPU %d", device);
    return 0;
}
API int cuDeviceGetUuid_v2(char *uuid, int device)
{
    memcpy(uuid, SAME_UUID, 16);
    uuid[15] = (char)(uuid[15] + device);
    return 0;
}
API int cuDeviceGetPCIBusId(char *text, int length, int device)
{
    snprintf(text, (size_t)length, fake_is("absurd") ? "%d:::" : "0000:3b:%02x.0", device);
    return 0;
}
API int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    (void)device;
    *bytes = fake_is("lying") || fake_is("absurd") ? ~(size_t)0 : (size_t)8 << 30;
    return 0;
}
API int cuDeviceGetAttribute(int *value, int which, int device)
{
    (void)device;
    *value = fake_is("absurd") ? -2147483647 : which == 75 ? (fake_is("kepler") ? 3 : 9) : which == 10 ? 32 : 0;
    return 0;
}
API int cuDevicePrimaryCtxRetain(void **context, int device)
{
    (void)device;
    fake_stage("create-device");
    *context = calloc(1, 16);
    return 0;
}
API int cuCtxSetCurrent(void *context) { (void)context; return 0; }
static size_t contexts;
API int cuCtxCreate_v2(void **context, unsigned flags, int device)
{
    (void)flags, (void)device;
    *context = calloc(1, 16);
    contexts++;
    return 0;
}
API int cuCtxDestroy_v2(void *context) { (void)context; contexts--; return 0; }
API int cuMemGetInfo_v2(size_t *free, size_t *total)
{
    *free = ((size_t)7 << 30) - contexts * ((size_t)300 << 20);
    *total = (size_t)8 << 30;
    return 0;
}

static size_t last;
API int cuMemAlloc_v2(uint64_t *place, size_t bytes)
{
    fake_stage("allocate");
    last = bytes;
    *place = (uint64_t)(uintptr_t)calloc(1, bytes);
    return 0;
}
API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) { memcpy((void *)(uintptr_t)to, from, bytes); return 0; }
API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { memcpy(to, (void *)(uintptr_t)from, bytes); return 0; }
API int cuMemFree_v2(uint64_t place) { (void)place; return 0; }
API int cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = calloc(1, 16); return 0; }
API int cuStreamSynchronize(void *stream) { (void)stream; return 0; }
API int cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values)
{
    (void)count, (void)options, (void)values;
    fake_stage("build-kernel");
    *module = calloc(1, 16);
    return strstr(image, "impasto_trial") ? 0 : 218;
}
API int cuModuleGetFunction(void **function, void *module, const char *name) { (void)name; *function = module; return 0; }
API int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                       void *stream, void **parameters, void **extra)
{
    (void)function, (void)gy, (void)gz, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    fake_stage("dispatch");
    const uint32_t *in = (const uint32_t *)(uintptr_t)*(uint64_t *)parameters[0];
    uint32_t *out = (uint32_t *)(uintptr_t)*(uint64_t *)parameters[1];
    for (uint32_t i = 0; i < gx * bx && i < last / 4; i++)
        out[i] = fake_is("wrong") && i == 17 ? 0 : in[i] * 3 + i;
    return 0;
}
API int cuCtxSynchronize(void) { return 0; }

/* What only a computation needs, and this driver refuses; a driver of the year 2017 has no graphs. */
#define STUB(name) API int name(void) { return 801; }
STUB(cuMemHostAlloc)
STUB(cuMemFreeHost)
STUB(cuMemHostGetDevicePointer_v2)
STUB(cuMemcpyAsync)
STUB(cuStreamDestroy_v2)
STUB(cuEventCreate)
STUB(cuEventDestroy_v2)
STUB(cuEventRecord)
STUB(cuEventSynchronize)
STUB(cuEventElapsedTime)
STUB(cuModuleUnload)
STUB(cuLinkCreate_v2)
STUB(cuLinkAddData_v2)
STUB(cuLinkComplete)
STUB(cuLinkDestroy)
STUB(cuFuncSetAttribute)
#ifndef FAKE_OF_2017
STUB(cuGraphCreate)
STUB(cuGraphDestroy)
STUB(cuGraphAddKernelNode)
STUB(cuGraphAddMemcpyNode)
STUB(cuGraphInstantiateWithFlags)
STUB(cuGraphUpload)
STUB(cuGraphLaunch)
STUB(cuGraphExecDestroy)
#endif
