/* A stand-in for libnvidia-ml.so.1: GPUs whose values move by a formula, steered through a mapped file.
 *
 * It implements the entry points that nvidia-ml-py, nvitop and the agent call, with NVIDIA's names, structures and
 * return codes (nvml.h). It does not imitate the driver's timing, save the 20 ms window of nvmlDeviceGetPcieThroughput.
 *
 * The control file (FAKE_NVML_CONTROL) is an array of 64-bit words, laid out by the constants below, which
 * tests/fakes/nvml/__init__.py reads from this source. Without one, a private zeroed array is used.
 */
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* Layout of the control file, in words. */
#define WORD_GPU_COUNT 1  /* 0: FAKE_NVML_GPUS, else 8 */
#define WORD_TIME_MS 2    /* 0: the monotonic clock */
#define WORD_GENERATION 3 /* another number: the driver was reloaded */
#define WORD_MACHINE 4    /* a number of this machine, which is a part of its GPUs' UUIDs */
#define FUNCTIONS_AT 16
#define FUNCTION_WORDS 32
#define FUNCTION_CALLS 0
#define FUNCTION_HANG 1
#define FUNCTION_ERROR 3      /* for every GPU */
#define FUNCTION_GPU_ERROR 4  /* + GPU index */
#define FUNCTION_GPU_HANG 20  /* bit of the GPU index */
#define MAX_FUNCTIONS 96
#define GPUS_AT 4096
#define GPU_WORDS 512
#define MAX_GPUS 16
#define GPU_MIG_MODE 0
#define GPU_PROCESS_COUNT 1
#define GPU_THROTTLE 2
#define GPU_ECC 3
#define GPU_MIG_COUNT 4
#define GPU_LOST 5
#define GPU_NARROW_PCIE 7
#define GPU_SPARE_TOUCHED 8 /* FieldValues writes one element past the count, as NVML may */
#define GPU_UTIL 9          /* 0: by formula, else util + 1 */
#define GPU_PROCESSES_AT 16
#define PROCESS_WORDS 4 /* pid, bytes, GPU instance, compute instance */
#define MAX_PROCESSES 64
#define GPU_MIGS_AT 288
#define MIG_WORDS 8 /* GPU instance, compute instance, GPU slices, compute slices, MiB, bytes used */
#define MAX_MIGS 7
#define GPU_UNSUPPORTED_FIELDS_AT 360
#define MAX_UNSUPPORTED_FIELDS 16
/* Links. What is 0 below is as on a healthy idle GPU. */
#define GPU_PCIE_WIDTH 384          /* 0: 16 */
#define GPU_PCIE_WIDTH_MAX 385      /* 0: 16 */
#define GPU_PCIE_GENERATION 386     /* while GPU_USER is set; 0: the most; else it is 1 */
#define GPU_PCIE_GENERATION_MAX 387 /* 0: 4 */
#define GPU_LINKS 389               /* NVLinks */
#define GPU_LINKS_DOWN 390          /* bits */
#define GPU_LINKS_NEW 415           /* they count by fields, as those of the fifth generation */
#define GPU_MEMORY_USED 396         /* 0: by formula, else bytes + 1 */
#define GPU_MEMORY_MIB 397          /* 0: by the model */
#define GPU_COMPUTE_MODE 398
#define GPU_MIG_PENDING 399 /* not the current mode */
#define GPU_ECC_PENDING 400 /* not the current mode */
#define GPU_POWER_LIMIT_MW 401 /* 0: 700 W */
#define GPU_ROWS_AT 402        /* remapped rows: correctable, uncorrectable, pending, failure */
#define GPU_SRAM_ERRORS 406    /* uncorrectable, ever */
#define GPU_USER 407           /* a process that computes on it, 0: none */
#define GPU_XID 417            /* an error that nobody has taken yet */
#define CONTROL_WORDS (GPUS_AT + MAX_GPUS * GPU_WORDS)

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    TIMED_OUT = 10,
    GPU_IS_LOST = 15, VERSION_MISMATCH = 25
};

#define FUNCTIONS(X) \
    X(nvmlInitWithFlags) \
    X(nvmlInit_v2) \
    X(nvmlShutdown) \
    X(nvmlSystemGetDriverVersion) \
    X(nvmlSystemGetNVMLVersion) \
    X(nvmlSystemGetCudaDriverVersion) \
    X(nvmlSystemGetCudaDriverVersion_v2) \
    X(nvmlDeviceGetCount_v2) \
    X(nvmlDeviceGetHandleByIndex_v2) \
    X(nvmlDeviceGetHandleByUUID) \
    X(nvmlDeviceGetHandleByPciBusId_v2) \
    X(nvmlDeviceGetIndex) \
    X(nvmlDeviceGetMinorNumber) \
    X(nvmlDeviceGetUUID) \
    X(nvmlDeviceGetName) \
    X(nvmlDeviceGetPciInfo_v3) \
    X(nvmlDeviceGetUtilizationRates) \
    X(nvmlDeviceGetMemoryInfo) \
    X(nvmlDeviceGetMemoryInfo_v2) \
    X(nvmlDeviceGetTemperature) \
    X(nvmlDeviceGetTemperatureV) \
    X(nvmlDeviceGetPowerUsage) \
    X(nvmlDeviceGetPowerManagementLimit) \
    X(nvmlDeviceGetEnforcedPowerLimit) \
    X(nvmlDeviceGetTotalEnergyConsumption) \
    X(nvmlDeviceGetClockInfo) \
    X(nvmlDeviceGetMaxClockInfo) \
    X(nvmlDeviceGetCurrentClocksThrottleReasons) \
    X(nvmlDeviceGetCurrentClocksEventReasons) \
    X(nvmlDeviceGetTotalEccErrors) \
    X(nvmlDeviceGetEccMode) \
    X(nvmlDeviceGetFieldValues) \
    X(nvmlDeviceGetPcieThroughput) \
    X(nvmlDeviceGetComputeRunningProcesses_v2) \
    X(nvmlDeviceGetComputeRunningProcesses_v3) \
    X(nvmlDeviceGetGraphicsRunningProcesses_v2) \
    X(nvmlDeviceGetGraphicsRunningProcesses_v3) \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v2) \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v3) \
    X(nvmlDeviceGetProcessUtilization) \
    X(nvmlDeviceGetMigMode) \
    X(nvmlDeviceGetMaxMigDeviceCount) \
    X(nvmlDeviceGetMigDeviceHandleByIndex) \
    X(nvmlDeviceIsMigDeviceHandle) \
    X(nvmlDeviceGetDeviceHandleFromMigDeviceHandle) \
    X(nvmlDeviceGetGpuInstanceId) \
    X(nvmlDeviceGetComputeInstanceId) \
    X(nvmlDeviceGetAttributes_v2) \
    X(nvmlDeviceGetFanSpeed) \
    X(nvmlDeviceGetEncoderUtilization) \
    X(nvmlDeviceGetDecoderUtilization) \
    X(nvmlDeviceGetPerformanceState) \
    X(nvmlDeviceGetComputeMode) \
    X(nvmlDeviceGetPersistenceMode) \
    X(nvmlDeviceGetDisplayActive) \
    X(nvmlDeviceGetDisplayMode) \
    X(nvmlDeviceGetCudaComputeCapability) \
    X(nvmlDeviceGetBAR1MemoryInfo) \
    X(nvmlDeviceGetDriverModel) \
    X(nvmlDeviceGetCurrPcieLinkWidth) \
    X(nvmlDeviceGetMaxPcieLinkWidth) \
    X(nvmlDeviceGetCurrPcieLinkGeneration) \
    X(nvmlDeviceGetMaxPcieLinkGeneration) \
    X(nvmlDeviceGetPcieReplayCounter) \
    X(nvmlDeviceGetNvLinkState) \
    X(nvmlDeviceGetNvLinkErrorCounter) \
    X(nvmlDeviceGetP2PStatus) \
    X(nvmlDeviceSetCpuAffinity) \
    X(nvmlDeviceGetPowerManagementDefaultLimit) \
    X(nvmlDeviceGetRemappedRows) \
    X(nvmlDeviceGetMemoryErrorCounter) \
    X(nvmlEventSetCreate) \
    X(nvmlDeviceRegisterEvents) \
    X(nvmlEventSetWait_v2)

enum function {
#define X(name) F_##name,
    FUNCTIONS(X)
#undef X
};

struct device {
    unsigned gpu;
    int mig; /* -1: the GPU itself */
};
typedef struct device *nvmlDevice_t;

static struct device gpus[MAX_GPUS], migs[MAX_GPUS][MAX_MIGS];
static uint64_t private_words[CONTROL_WORDS];
static uint64_t *volatile words = private_words;
static char mapped_path[4096];
static int users;
static uint64_t generation;

static uint64_t word(size_t at) { return __atomic_load_n(&words[at], __ATOMIC_RELAXED); }
static uint64_t gpu_word(unsigned gpu, size_t at) { return word(GPUS_AT + gpu * GPU_WORDS + at); }
static uint64_t mig_word(nvmlDevice_t d, size_t at) { return gpu_word(d->gpu, GPU_MIGS_AT + (size_t)d->mig * MIG_WORDS + at); }

static unsigned or_else(unsigned gpu, size_t at, unsigned usual) { uint64_t set = gpu_word(gpu, at); return set ? (unsigned)set : usual; }

static unsigned gpu_count(void) {
    unsigned count = (unsigned)word(WORD_GPU_COUNT);
    const char *wanted = getenv("FAKE_NVML_GPUS");
    if (!count) count = wanted ? (unsigned)atoi(wanted) : 8;
    return count > MAX_GPUS ? MAX_GPUS : count;
}

static double seconds(void) {
    struct timespec now;
    if (word(WORD_TIME_MS)) return (double)word(WORD_TIME_MS) / 1e3;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Maps the control file of the moment; an older mapping stays, for threads that hang in it. */
static void map_control(void) {
    const char *path = getenv("FAKE_NVML_CONTROL");
    int fd;
    void *mapping;
    if (!path || !strcmp(path, mapped_path)) return;
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    mapping = mmap(NULL, sizeof private_words, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapping == MAP_FAILED) return;
    words = mapping;
    snprintf(mapped_path, sizeof mapped_path, "%s", path);
}

/* Every call goes through here: counted, hung or refused as the control file says. */
static int enter(enum function function, int gpu) {
    uint64_t *mine = words + FUNCTIONS_AT + (size_t)function * FUNCTION_WORDS;
    uint64_t error;
    __atomic_fetch_add(&mine[FUNCTION_CALLS], 1, __ATOMIC_RELAXED);
    while (__atomic_load_n(&mine[FUNCTION_HANG], __ATOMIC_ACQUIRE) ||
           (gpu >= 0 && (__atomic_load_n(&mine[FUNCTION_GPU_HANG], __ATOMIC_ACQUIRE) >> gpu & 1)))
        usleep(1000);
    error = mine[FUNCTION_ERROR];
    if (!error && gpu >= 0) error = mine[FUNCTION_GPU_ERROR + gpu];
    if (error) return (int)error;
    if (function == F_nvmlInitWithFlags || function == F_nvmlInit_v2) return OK;
    if (!users || generation != word(WORD_GENERATION)) return UNINITIALIZED;
    if (gpu >= 0 && gpu_word((unsigned)gpu, GPU_LOST)) return GPU_IS_LOST;
    return OK;
}

#define SYSTEM(name) \
    do { int refused = enter(F_##name, -1); if (refused) return refused; } while (0)
#define DEVICE(name, d) \
    do { int refused; if (!(d)) return INVALID_ARGUMENT; refused = enter(F_##name, (int)(d)->gpu); if (refused) return refused; } while (0)
#define WHOLE_GPU(name, d) \
    do { DEVICE(name, d); if ((d)->mig >= 0) return NOT_SUPPORTED; } while (0)

/* ---- values ---- */

static double wave(unsigned gpu, double period) { return 0.5 + 0.5 * sin(6.283185307179586 * (seconds() / period + gpu / 8.0)); }
static unsigned util(unsigned gpu) {
    uint64_t fixed = gpu_word(gpu, GPU_UTIL);
    return fixed ? (unsigned)fixed - 1 : 60 + (unsigned)(39 * wave(gpu, 20));
}
static const uint64_t GIB = 1ull << 30;
static uint64_t memory_total(nvmlDevice_t d) {
    if (d->mig >= 0) return mig_word(d, 4) << 20;
    if (gpu_word(d->gpu, GPU_MEMORY_MIB)) return gpu_word(d->gpu, GPU_MEMORY_MIB) << 20;
    return 80 * GIB;
}
static uint64_t memory_used(nvmlDevice_t d) {
    if (d->mig >= 0) return mig_word(d, 5);
    if (gpu_word(d->gpu, GPU_MEMORY_USED)) return gpu_word(d->gpu, GPU_MEMORY_USED) - 1;
    return 20 * GIB + (uint64_t)(d->gpu * 256 + 128 * wave(d->gpu, 60)) * (1 << 20);
}
static unsigned power_mw(unsigned gpu) { return 200000 + 10000 * gpu + util(gpu) * 1000; }
static const uint64_t RESERVED = 512ull << 20;

/* ---- system ---- */

static int initialise(enum function function) {
    int refused;
    map_control();
    refused = enter(function, -1);
    if (refused) return refused;
    for (unsigned gpu = 0; gpu < MAX_GPUS; gpu++) {
        gpus[gpu] = (struct device){gpu, -1};
        for (int mig = 0; mig < MAX_MIGS; mig++) migs[gpu][mig] = (struct device){gpu, mig};
    }
    generation = word(WORD_GENERATION);
    users++;
    return OK;
}
EXPORT int nvmlInitWithFlags(unsigned flags) { (void)flags; return initialise(F_nvmlInitWithFlags); }
EXPORT int nvmlInit_v2(void) { return initialise(F_nvmlInit_v2); }
EXPORT int nvmlShutdown(void) {
    SYSTEM(nvmlShutdown);
    users--;
    return OK;
}
EXPORT const char *nvmlErrorString(int code) {
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case NOT_SUPPORTED: return "Not Supported";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Error of the stand-in";
    }
}
static int text(char *to, unsigned size, const char *from) {
    if (strlen(from) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return OK;
}
EXPORT int nvmlSystemGetDriverVersion(char *to, unsigned size) { SYSTEM(nvmlSystemGetDriverVersion); return text(to, size, "580.95.05"); }
EXPORT int nvmlSystemGetNVMLVersion(char *to, unsigned size) { SYSTEM(nvmlSystemGetNVMLVersion); return text(to, size, "13.580.95.05"); }
EXPORT int nvmlSystemGetCudaDriverVersion(int *to) { SYSTEM(nvmlSystemGetCudaDriverVersion); *to = 13000; return OK; }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *to) { SYSTEM(nvmlSystemGetCudaDriverVersion_v2); *to = 13000; return OK; }
EXPORT int nvmlDeviceGetCount_v2(unsigned *to) { SYSTEM(nvmlDeviceGetCount_v2); *to = gpu_count(); return OK; }

/* ---- identity ---- */

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *to) {
    int refused = enter(F_nvmlDeviceGetHandleByIndex_v2, index < MAX_GPUS ? (int)index : -1);
    if (refused) return refused;
    if (index >= gpu_count()) return INVALID_ARGUMENT;
    *to = &gpus[index];
    return OK;
}
static void uuid_of(nvmlDevice_t d, char to[80]) {
    if (d->mig < 0)
        snprintf(to, 80, "GPU-%08x-fa4e-%04x-0000-%012x", 0xa0b0c000u + d->gpu, (unsigned)word(WORD_MACHINE), d->gpu);
    else snprintf(to, 80, "MIG-%08x-fa4e-5%03x-0000-%012x", 0xa0b0c000u + d->gpu, (unsigned)d->mig, d->gpu);
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *to) {
    char mine[80];
    SYSTEM(nvmlDeviceGetHandleByUUID);
    for (unsigned gpu = 0; gpu < gpu_count(); gpu++) {
        uuid_of(&gpus[gpu], mine);
        if (!strcmp(uuid, mine)) { *to = &gpus[gpu]; return OK; }
        for (int mig = 0; mig < MAX_MIGS; mig++) {
            uuid_of(&migs[gpu][mig], mine);
            if (!strcmp(uuid, mine)) { *to = &migs[gpu][mig]; return OK; }
        }
    }
    return NOT_FOUND;
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *to) {
    unsigned bus;
    SYSTEM(nvmlDeviceGetHandleByPciBusId_v2);
    if (sscanf(id, "%*x:%x:", &bus) != 1 || bus < 16 || bus - 16 >= gpu_count()) return NOT_FOUND;
    *to = &gpus[bus - 16];
    return OK;
}
EXPORT int nvmlDeviceGetIndex(nvmlDevice_t d, unsigned *to) { DEVICE(nvmlDeviceGetIndex, d); *to = d->mig < 0 ? d->gpu : (unsigned)d->mig; return OK; }
EXPORT int nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *to) { WHOLE_GPU(nvmlDeviceGetMinorNumber, d); *to = d->gpu; return OK; }
EXPORT int nvmlDeviceGetUUID(nvmlDevice_t d, char *to, unsigned size) {
    char mine[80];
    DEVICE(nvmlDeviceGetUUID, d);
    uuid_of(d, mine);
    return text(to, size, mine);
}
EXPORT int nvmlDeviceGetName(nvmlDevice_t d, char *to, unsigned size) {
    char mine[96];
    const char *model = "NVIDIA H100 80GB HBM3 (fake)";
    DEVICE(nvmlDeviceGetName, d);
    if (d->mig < 0) return text(to, size, model);
    if (mig_word(d, 2) == mig_word(d, 3))
        snprintf(mine, sizeof mine, "%s MIG %ug.%ugb", model, (unsigned)mig_word(d, 2), (unsigned)(mig_word(d, 4) / 1024));
    else
        snprintf(mine, sizeof mine, "%s MIG %uc.%ug.%ugb", model, (unsigned)mig_word(d, 3), (unsigned)mig_word(d, 2), (unsigned)(mig_word(d, 4) / 1024));
    return text(to, size, mine);
}
struct pci_info { char legacy[16]; unsigned domain, bus, device, pci_id, subsystem_id; char id[32]; };
EXPORT int nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, struct pci_info *to) {
    WHOLE_GPU(nvmlDeviceGetPciInfo_v3, d);
    memset(to, 0, sizeof *to);
    to->bus = 16 + d->gpu;
    to->pci_id = 0x233010de;
    snprintf(to->legacy, sizeof to->legacy, "0000:%02X:00.0", to->bus);
    snprintf(to->id, sizeof to->id, "00000000:%02X:00.0", to->bus);
    return OK;
}

/* ---- readings ---- */

struct pair { unsigned first, second; };
EXPORT int nvmlDeviceGetUtilizationRates(nvmlDevice_t d, struct pair *to) {
    WHOLE_GPU(nvmlDeviceGetUtilizationRates, d);
    if (gpu_word(d->gpu, GPU_MIG_MODE)) return NOT_SUPPORTED;
    to->first = util(d->gpu);
    to->second = util(d->gpu) / 2;
    return OK;
}
struct memory { unsigned long long total, free, used; };
EXPORT int nvmlDeviceGetMemoryInfo(nvmlDevice_t d, struct memory *to) {
    DEVICE(nvmlDeviceGetMemoryInfo, d);
    to->total = memory_total(d);
    to->used = memory_used(d) + RESERVED;
    to->free = to->total - to->used;
    return OK;
}
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
EXPORT int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, struct memory_v2 *to) {
    DEVICE(nvmlDeviceGetMemoryInfo_v2, d);
    if (to->version != (sizeof *to | 2u << 24)) return VERSION_MISMATCH;
    to->total = memory_total(d);
    to->reserved = RESERVED;
    to->used = memory_used(d);
    to->free = to->total - to->used - RESERVED;
    return OK;
}
static int celsius(unsigned gpu) { return 40 + (int)gpu + (int)(30 * wave(gpu, 120)); }
EXPORT int nvmlDeviceGetTemperature(nvmlDevice_t d, unsigned sensor, unsigned *to) {
    WHOLE_GPU(nvmlDeviceGetTemperature, d);
    (void)sensor;
    *to = (unsigned)celsius(d->gpu);
    return OK;
}
struct temperature { unsigned version; int sensor, value; };
EXPORT int nvmlDeviceGetTemperatureV(nvmlDevice_t d, struct temperature *to) {
    WHOLE_GPU(nvmlDeviceGetTemperatureV, d);
    to->value = celsius(d->gpu);
    return OK;
}
EXPORT int nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *to) { WHOLE_GPU(nvmlDeviceGetPowerUsage, d); *to = power_mw(d->gpu); return OK; }
static unsigned power_limit_mw(unsigned gpu) { uint64_t set = gpu_word(gpu, GPU_POWER_LIMIT_MW); return set ? (unsigned)set : 700000; }
EXPORT int nvmlDeviceGetPowerManagementLimit(nvmlDevice_t d, unsigned *to) { WHOLE_GPU(nvmlDeviceGetPowerManagementLimit, d); *to = power_limit_mw(d->gpu); return OK; }
EXPORT int nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *to) { WHOLE_GPU(nvmlDeviceGetEnforcedPowerLimit, d); *to = power_limit_mw(d->gpu); return OK; }
EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t d, unsigned *to) { WHOLE_GPU(nvmlDeviceGetPowerManagementDefaultLimit, d); *to = 700000; return OK; }
EXPORT int nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, unsigned long long *to) {
    WHOLE_GPU(nvmlDeviceGetTotalEnergyConsumption, d);
    *to = (unsigned long long)(seconds() * (250000 + 10000 * d->gpu));
    return OK;
}
static unsigned clock_mhz(unsigned gpu, unsigned kind) { return kind == 2 ? 2619 : 1500 + 5 * util(gpu); }
EXPORT int nvmlDeviceGetClockInfo(nvmlDevice_t d, unsigned kind, unsigned *to) { WHOLE_GPU(nvmlDeviceGetClockInfo, d); *to = clock_mhz(d->gpu, kind); return OK; }
EXPORT int nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, unsigned kind, unsigned *to) { WHOLE_GPU(nvmlDeviceGetMaxClockInfo, d); *to = kind == 2 ? 2619 : 1980; return OK; }
/* With the highest bit the reasons are there for the first who asks only. */
static unsigned reasons(unsigned gpu) {
    static unsigned char asked[64];
    unsigned set = gpu_word(gpu, GPU_THROTTLE);
    return set & 0x80000000u && asked[gpu % 64]++ ? 0 : set & 0x7fffffffu;
}
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long *to) {
    WHOLE_GPU(nvmlDeviceGetCurrentClocksThrottleReasons, d);
    *to = reasons(d->gpu);
    return OK;
}
EXPORT int nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, unsigned long long *to) {
    WHOLE_GPU(nvmlDeviceGetCurrentClocksEventReasons, d);
    *to = reasons(d->gpu);
    return OK;
}
EXPORT int nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, unsigned type, unsigned counter, unsigned long long *to) {
    WHOLE_GPU(nvmlDeviceGetTotalEccErrors, d);
    (void)counter;
    *to = type == 1 ? gpu_word(d->gpu, GPU_ECC) : 0;
    return OK;
}
EXPORT int nvmlDeviceGetEccMode(nvmlDevice_t d, unsigned *current, unsigned *pending) {
    WHOLE_GPU(nvmlDeviceGetEccMode, d);
    *current = 1;
    *pending = !gpu_word(d->gpu, GPU_ECC_PENDING);
    return OK;
}
EXPORT int nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t d, unsigned type, unsigned counter, unsigned location, unsigned long long *to) {
    WHOLE_GPU(nvmlDeviceGetMemoryErrorCounter, d);
    if (location != 7) return NOT_SUPPORTED;
    *to = type == 1 && counter == 1 ? gpu_word(d->gpu, GPU_SRAM_ERRORS) : 0;
    return OK;
}
EXPORT int nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failure) {
    WHOLE_GPU(nvmlDeviceGetRemappedRows, d);
    *correctable = (unsigned)gpu_word(d->gpu, GPU_ROWS_AT);
    *uncorrectable = (unsigned)gpu_word(d->gpu, GPU_ROWS_AT + 1);
    *pending = (unsigned)gpu_word(d->gpu, GPU_ROWS_AT + 2);
    *failure = (unsigned)gpu_word(d->gpu, GPU_ROWS_AT + 3);
    return OK;
}

/* ---- events: Xid errors of the GPUs of one set ---- */

static uint64_t watched;
EXPORT int nvmlEventSetCreate(void **to) { SYSTEM(nvmlEventSetCreate); *to = &watched; watched = 0; return OK; }
EXPORT int nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, uint64_t *set) {
    WHOLE_GPU(nvmlDeviceRegisterEvents, d);
    if (types != 8) return INVALID_ARGUMENT;
    *set |= 1ull << d->gpu;
    return OK;
}
struct gpu_error { nvmlDevice_t device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
EXPORT int nvmlEventSetWait_v2(uint64_t *set, struct gpu_error *to, unsigned milliseconds) {
    SYSTEM(nvmlEventSetWait_v2);
    (void)milliseconds;
    for (unsigned gpu = 0; gpu < gpu_count(); gpu++) {
        uint64_t *mine = words + GPUS_AT + gpu * GPU_WORDS + GPU_XID;
        uint64_t xid = *set >> gpu & 1 ? __atomic_exchange_n(mine, 0, __ATOMIC_RELAXED) : 0;
        if (!xid) continue;
        *to = (struct gpu_error){&gpus[gpu], 8, xid, ~0u, ~0u};
        return OK;
    }
    for (unsigned gpu = 0; gpu < gpu_count(); gpu++)
        if (gpu_word(gpu, GPU_LOST)) return GPU_IS_LOST;
    return TIMED_OUT;
}

/* ---- links ---- */

#define LINK(name, value) EXPORT int name(nvmlDevice_t d, unsigned *to) { WHOLE_GPU(name, d); *to = (value); return OK; }
LINK(nvmlDeviceGetCurrPcieLinkWidth, or_else(d->gpu, GPU_PCIE_WIDTH, 16))
LINK(nvmlDeviceGetMaxPcieLinkWidth, or_else(d->gpu, GPU_PCIE_WIDTH_MAX, 16))
LINK(nvmlDeviceGetMaxPcieLinkGeneration, or_else(d->gpu, GPU_PCIE_GENERATION_MAX, 4))
LINK(nvmlDeviceGetCurrPcieLinkGeneration,
     gpu_word(d->gpu, GPU_USER) ? or_else(d->gpu, GPU_PCIE_GENERATION, or_else(d->gpu, GPU_PCIE_GENERATION_MAX, 4)) : 1)
LINK(nvmlDeviceGetPcieReplayCounter, 0)
EXPORT int nvmlDeviceSetCpuAffinity(nvmlDevice_t d) { WHOLE_GPU(nvmlDeviceSetCpuAffinity, d); return OK; }
EXPORT int nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned link, unsigned *to) {
    WHOLE_GPU(nvmlDeviceGetNvLinkState, d);
    if (link >= gpu_word(d->gpu, GPU_LINKS)) return NOT_SUPPORTED;
    *to = !(gpu_word(d->gpu, GPU_LINKS_DOWN) >> link & 1);
    return OK;
}
EXPORT int nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t d, unsigned link, unsigned kind, unsigned long long *to) {
    WHOLE_GPU(nvmlDeviceGetNvLinkErrorCounter, d);
    if (link >= gpu_word(d->gpu, GPU_LINKS) || kind > 3 || gpu_word(d->gpu, GPU_LINKS_NEW)) return NOT_SUPPORTED;
    *to = 3;
    return OK;
}
EXPORT int nvmlDeviceGetP2PStatus(nvmlDevice_t d, nvmlDevice_t other, unsigned kind, unsigned *to) {
    WHOLE_GPU(nvmlDeviceGetP2PStatus, d);
    if (!other || kind != 2) return NOT_SUPPORTED;
    *to = gpu_word(d->gpu, GPU_LINKS) && gpu_word(other->gpu, GPU_LINKS) ? 0 : 5;
    return OK;
}

/* ---- field values and windows ---- */

union value { double d; unsigned ui; unsigned long long ull; };
struct field { uint32_t id, scope; int64_t timestamp, latency; unsigned type; int status; union value value; };
enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };

static int unsupported(unsigned gpu, uint32_t id) {
    for (size_t at = 0; at < MAX_UNSUPPORTED_FIELDS; at++)
        if (gpu_word(gpu, GPU_UNSUPPORTED_FIELDS_AT + at) == id) return 1;
    return 0;
}
static void field(unsigned gpu, struct field *f) {
    double now = seconds();
    f->timestamp = (int64_t)(now * 1e6);
    f->latency = 10;
    f->type = UNSIGNED_LONG_LONG;
    f->status = OK;
    if (unsupported(gpu, f->id)) { f->status = NOT_SUPPORTED; return; }
    switch (f->id) {
    case 82: f->type = UNSIGNED_INT; f->value.ui = (unsigned)celsius(gpu) + 8; return;
    case 83: f->value.ull = (unsigned long long)(now * (250000 + 10000 * gpu)); return;
    case 186: f->type = UNSIGNED_INT; f->value.ui = power_mw(gpu); return;
    case 138: case 139: case 140: case 141: /* KiB; links together have the scope UINT_MAX */
        if (f->scope != UINT32_MAX && f->scope >= 18) { f->status = INVALID_ARGUMENT; return; }
        f->value.ull = (unsigned long long)(now * (1000000 + 1000 * gpu + 100 * (f->id - 138)));
        if (f->scope != UINT32_MAX) f->value.ull /= 18;
        return;
    case 197: case 198: { /* bytes */
        unsigned long long bytes = (unsigned long long)(now * (5e9 + 1e6 * gpu + 1e5 * (f->id - 197)));
        if (!gpu_word(gpu, GPU_NARROW_PCIE)) f->value.ull = bytes;
        else { f->type = UNSIGNED_INT; f->value.ull = 0; f->value.ui = (unsigned)bytes; }
        return;
    }
    case 215: /* of the links that have no other counters */
        if (!gpu_word(gpu, GPU_LINKS_NEW) || f->scope >= gpu_word(gpu, GPU_LINKS)) { f->status = NOT_SUPPORTED; return; }
        f->value.ull = 0;
        return;
    default: f->status = NOT_SUPPORTED;
    }
}
EXPORT int nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, struct field *values) {
    WHOLE_GPU(nvmlDeviceGetFieldValues, d);
    for (int at = 0; at < count; at++) field(d->gpu, &values[at]);
    if (gpu_word(d->gpu, GPU_SPARE_TOUCHED)) memset(&values[count], 0xee, sizeof *values);
    return OK;
}
EXPORT int nvmlDeviceGetPcieThroughput(nvmlDevice_t d, unsigned counter, unsigned *to) {
    WHOLE_GPU(nvmlDeviceGetPcieThroughput, d);
    (void)counter;
    usleep(20000);
    *to = gpu_word(d->gpu, GPU_USER) ? 25000 * 977u : 4882812;
    return OK;
}

/* ---- processes ---- */

struct process { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; };

static int processes(nvmlDevice_t d, unsigned *count, struct process *to) {
    unsigned listed = (unsigned)gpu_word(d->gpu, GPU_PROCESS_COUNT), found = 0;
    unsigned user = (unsigned)gpu_word(d->gpu, GPU_USER);
    if (user) {
        if (to && found < *count) to[found] = (struct process){user, 300ull << 20, UINT32_MAX, UINT32_MAX};
        found++;
    }
    for (unsigned at = 0; at < listed && at < MAX_PROCESSES; at++) {
        size_t from = GPU_PROCESSES_AT + at * PROCESS_WORDS;
        struct process one = {(unsigned)gpu_word(d->gpu, from), gpu_word(d->gpu, from + 1),
                              (unsigned)gpu_word(d->gpu, from + 2), (unsigned)gpu_word(d->gpu, from + 3)};
        if (d->mig >= 0 && (one.gpu_instance != mig_word(d, 0) || one.compute_instance != mig_word(d, 1))) continue;
        if (to && found < *count) to[found] = one;
        found++;
    }
    if (found > (to ? *count : 0)) { *count = found; return INSUFFICIENT_SIZE; }
    *count = found;
    return OK;
}
#define COMPUTE(name) EXPORT int name(nvmlDevice_t d, unsigned *count, struct process *to) { DEVICE(name, d); return processes(d, count, to); }
#define NOBODY(name) EXPORT int name(nvmlDevice_t d, unsigned *count, struct process *to) { DEVICE(name, d); (void)to; *count = 0; return OK; }
COMPUTE(nvmlDeviceGetComputeRunningProcesses_v2)
COMPUTE(nvmlDeviceGetComputeRunningProcesses_v3)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3)

struct utilization_sample { unsigned pid; unsigned long long timestamp; unsigned sm, memory, encoder, decoder; };
EXPORT int nvmlDeviceGetProcessUtilization(nvmlDevice_t d, struct utilization_sample *to, unsigned *count, unsigned long long since) {
    unsigned listed = (unsigned)gpu_word(d ? d->gpu : 0, GPU_PROCESS_COUNT);
    WHOLE_GPU(nvmlDeviceGetProcessUtilization, d);
    (void)since;
    if (!listed) return NOT_FOUND;
    if (!to || *count < listed) { *count = listed; return INSUFFICIENT_SIZE; }
    for (unsigned at = 0; at < listed; at++)
        to[at] = (struct utilization_sample){(unsigned)gpu_word(d->gpu, GPU_PROCESSES_AT + at * PROCESS_WORDS),
                                             (unsigned long long)(seconds() * 1e6), util(d->gpu) / listed, 10, 0, 0};
    *count = listed;
    return OK;
}

/* ---- MIG ---- */

EXPORT int nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *current, unsigned *pending) {
    WHOLE_GPU(nvmlDeviceGetMigMode, d);
    *current = (unsigned)gpu_word(d->gpu, GPU_MIG_MODE);
    *pending = *current ^ (unsigned)gpu_word(d->gpu, GPU_MIG_PENDING);
    return OK;
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *to) { WHOLE_GPU(nvmlDeviceGetMaxMigDeviceCount, d); *to = MAX_MIGS; return OK; }
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned index, nvmlDevice_t *to) {
    WHOLE_GPU(nvmlDeviceGetMigDeviceHandleByIndex, d);
    if (index >= MAX_MIGS) return INVALID_ARGUMENT;
    if (!gpu_word(d->gpu, GPU_MIG_MODE) || index >= gpu_word(d->gpu, GPU_MIG_COUNT)) return NOT_FOUND;
    *to = &migs[d->gpu][index];
    return OK;
}
EXPORT int nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, unsigned *to) { DEVICE(nvmlDeviceIsMigDeviceHandle, d); *to = d->mig >= 0; return OK; }
EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t d, nvmlDevice_t *to) {
    DEVICE(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, d);
    if (d->mig < 0) return INVALID_ARGUMENT;
    *to = &gpus[d->gpu];
    return OK;
}
EXPORT int nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned *to) {
    DEVICE(nvmlDeviceGetGpuInstanceId, d);
    if (d->mig < 0) return INVALID_ARGUMENT;
    *to = (unsigned)mig_word(d, 0);
    return OK;
}
EXPORT int nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, unsigned *to) {
    DEVICE(nvmlDeviceGetComputeInstanceId, d);
    if (d->mig < 0) return INVALID_ARGUMENT;
    *to = (unsigned)mig_word(d, 1);
    return OK;
}
struct attributes { unsigned multiprocessors, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices; unsigned long long memory_mb; };
EXPORT int nvmlDeviceGetAttributes_v2(nvmlDevice_t d, struct attributes *to) {
    DEVICE(nvmlDeviceGetAttributes_v2, d);
    if (d->mig < 0) return NOT_SUPPORTED;
    memset(to, 0, sizeof *to);
    to->gpu_slices = (unsigned)mig_word(d, 2);
    to->compute_slices = (unsigned)mig_word(d, 3);
    to->multiprocessors = 16 * to->compute_slices;
    to->memory_mb = mig_word(d, 4);
    return OK;
}

/* ---- what other monitors ask for ---- */

#define CONSTANT(name, number) EXPORT int name(nvmlDevice_t d, unsigned *to) { WHOLE_GPU(name, d); *to = (number); return OK; }
CONSTANT(nvmlDeviceGetPerformanceState, 0)
CONSTANT(nvmlDeviceGetComputeMode, (unsigned)gpu_word(d->gpu, GPU_COMPUTE_MODE))
CONSTANT(nvmlDeviceGetPersistenceMode, 1)
CONSTANT(nvmlDeviceGetDisplayActive, 0)
CONSTANT(nvmlDeviceGetDisplayMode, 0)
EXPORT int nvmlDeviceGetFanSpeed(nvmlDevice_t d, unsigned *to) { (void)to; WHOLE_GPU(nvmlDeviceGetFanSpeed, d); return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetDriverModel(nvmlDevice_t d, unsigned *current, unsigned *pending) {
    (void)current;
    (void)pending;
    WHOLE_GPU(nvmlDeviceGetDriverModel, d);
    return NOT_SUPPORTED;
}
EXPORT int nvmlDeviceGetEncoderUtilization(nvmlDevice_t d, unsigned *to, unsigned *period) {
    WHOLE_GPU(nvmlDeviceGetEncoderUtilization, d);
    *to = 0;
    *period = 167000;
    return OK;
}
EXPORT int nvmlDeviceGetDecoderUtilization(nvmlDevice_t d, unsigned *to, unsigned *period) {
    WHOLE_GPU(nvmlDeviceGetDecoderUtilization, d);
    *to = 0;
    *period = 167000;
    return OK;
}
EXPORT int nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor) {
    WHOLE_GPU(nvmlDeviceGetCudaComputeCapability, d);
    *major = 9;
    *minor = 0;
    return OK;
}
EXPORT int nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t d, struct memory *to) {
    WHOLE_GPU(nvmlDeviceGetBAR1MemoryInfo, d);
    to->total = 128 * GIB;
    to->used = GIB;
    to->free = 127 * GIB;
    return OK;
}
