/* A stand-in for libcuda.so.1: copies that move nothing and take the time that the control file says.
 *
 * It implements the calls that the agent makes, with NVIDIA's names, types and error codes (cuda.h). A GPU has one
 * stream here, whatever is asked for. What is copied is told to the stand-in NVML through the control file.
 */
#include "fake_nvml.c"

enum { NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_VALUE = 1, PEER_ALREADY = 704, NOT_READY = 600 };

struct stream { unsigned gpu; double busy_until; };
struct event { double at; };
static struct stream streams[MAX_GPUS];
static __thread int current = -1;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}
static void count(unsigned gpu, size_t at) { __atomic_fetch_add(&words[GPUS_AT + gpu * GPU_WORDS + at], 1, __ATOMIC_RELAXED); }
static void set(unsigned gpu, size_t at, uint64_t to) { __atomic_store_n(&words[GPUS_AT + gpu * GPU_WORDS + at], to, __ATOMIC_RELEASE); }

EXPORT int cuInit(unsigned flags) {
    (void)flags;
    map_control();
    for (unsigned gpu = 0; gpu < MAX_GPUS; gpu++) streams[gpu].gpu = gpu;
    return gpu_count() ? OK : NO_DEVICE;
}
EXPORT int cuGetErrorName(int code, const char **to) {
    switch (code) {
    case NO_DEVICE: *to = "CUDA_ERROR_NO_DEVICE"; return OK;
    case INVALID_DEVICE: *to = "CUDA_ERROR_INVALID_DEVICE"; return OK;
    case 2: *to = "CUDA_ERROR_OUT_OF_MEMORY"; return OK;
    case 999: *to = "CUDA_ERROR_UNKNOWN"; return OK;
    case 802: *to = "CUDA_ERROR_SYSTEM_NOT_READY"; return OK;
    default: *to = NULL; return INVALID_VALUE;
    }
}
EXPORT int cuDeviceGetByPCIBusId(int *to, const char *id) {
    unsigned bus;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (sscanf(id, "%*x:%x:", &bus) != 1 || bus < 16 || bus - 16 >= gpu_count()) return INVALID_DEVICE;
    if (visible && !strchr(visible, (int)('0' + bus - 16))) return INVALID_DEVICE;
    *to = (int)bus - 16;
    return OK;
}
EXPORT int cuDevicePrimaryCtxRetain(void **to, int device) {
    while (gpu_word((unsigned)device, GPU_CUDA_HANGS)) usleep(1000);
    if (gpu_word((unsigned)device, GPU_CUDA_ERROR)) return (int)gpu_word((unsigned)device, GPU_CUDA_ERROR);
    set((unsigned)device, GPU_USER, (uint64_t)getpid());
    *to = &streams[device];
    return OK;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) { set((unsigned)device, GPU_USER, 0); return OK; }
EXPORT int cuCtxSetCurrent(void *context) { current = context ? (int)((struct stream *)context)->gpu : -1; return OK; }
EXPORT int cuMemAlloc_v2(uint64_t *to, size_t bytes) { (void)bytes; *to = 0x1000; return current < 0 ? 201 : OK; }
EXPORT int cuMemFree_v2(uint64_t at) { (void)at; return OK; }
EXPORT int cuMemHostAlloc(void **to, size_t bytes, unsigned flags) { (void)flags; *to = malloc(bytes); return *to ? OK : 2; }
EXPORT int cuMemFreeHost(void *at) { free(at); return OK; }
EXPORT int cuStreamCreate(void **to, unsigned flags) { (void)flags; *to = &streams[current]; return OK; }
EXPORT int cuStreamSynchronize(void *stream) {
    while (now() < ((struct stream *)stream)->busy_until) usleep(100);
    return OK;
}
EXPORT int cuStreamDestroy_v2(void *stream) { (void)stream; return OK; }
EXPORT int cuEventCreate(void **to, unsigned flags) { (void)flags; *to = calloc(1, sizeof(struct event)); return OK; }
EXPORT int cuEventDestroy_v2(void *event) { free(event); return OK; }
EXPORT int cuEventRecord(void *event, void *stream) {
    double busy = ((struct stream *)stream)->busy_until;
    ((struct event *)event)->at = busy > now() ? busy : now();
    return OK;
}
EXPORT int cuEventQuery(void *event) { return now() < ((struct event *)event)->at ? NOT_READY : OK; }
EXPORT int cuEventElapsedTime(float *to, void *from, void *until) {
    *to = (float)(1e3 * (((struct event *)until)->at - ((struct event *)from)->at));
    return OK;
}
static int copy(struct stream *stream, size_t bytes, double mb_s) {
    double begins = stream->busy_until > now() ? stream->busy_until : now();
    stream->busy_until = begins + (double)bytes / (mb_s * 1e6);
    count(stream->gpu, GPU_COPIES);
    return OK;
}
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    struct stream *mine = stream;
    (void)to, (void)from;
    return copy(mine, bytes, or_else(mine->gpu, GPU_COPY_MB_S, 25000));
}
EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    struct stream *mine = stream;
    (void)to, (void)from;
    return copy(mine, bytes, or_else(mine->gpu, GPU_COPY_MB_S, 25000));
}
EXPORT int cuDeviceCanAccessPeer(int *to, int device, int peer) { *to = device != peer; return OK; }
EXPORT int cuCtxEnablePeerAccess(void *peer, unsigned flags) { (void)flags; return peer && current >= 0 ? OK : PEER_ALREADY; }
EXPORT int cuMemcpyPeerAsync(uint64_t to, void *to_context, uint64_t from, void *from_context, size_t bytes, void *stream) {
    struct stream *mine = stream;
    (void)to, (void)from, (void)from_context;
    if (gpu_word(mine->gpu, GPU_PEER_ERROR)) return (int)gpu_word(mine->gpu, GPU_PEER_ERROR);
    count(mine->gpu, GPU_PEER_COPIES);
    count(((struct stream *)to_context)->gpu, GPU_PEER_COPIES);
    return copy(mine, bytes, or_else(mine->gpu, GPU_PEER_MB_S, 200000));
}
