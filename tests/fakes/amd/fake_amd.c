/* A stand-in for libamd_smi.so: GPUs whose values a file says, with AMD's names, structures and return codes (amdsmi.h).
 *
 * The file (FAKE_AMD_CONTROL) has a line for each value: "gpus 2", "util.1 97", "fail.amdsmi_get_clock_info 2".
 * Structures are those of ROCm 6.2 and, with "rocm 7", of 7.0: what the agent reads lies at the same place in both.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define CHECKED(function) do { long status = value("fail." #function, -1, 0); if (status) return (int)status; } while (0)

typedef struct { char market_name[64]; uint32_t vendor_id; char rest[192]; } asic_of_6;
typedef struct { char market_name[256]; uint32_t vendor_id; char rest[1024]; } asic_of_7;
typedef struct { uint32_t gfx, umc, mm, reserved[13]; } engine_usage;
typedef struct { uint32_t clk, min_clk, max_clk; uint8_t locked, deep_sleep; uint32_t reserved[4]; } clock_info;
typedef struct { uint64_t correctable, uncorrectable, deferred, reserved[5]; } error_count;

static long value(const char *name, int gpu, long otherwise) {
    char wanted[96], line[256];
    const char *path = getenv("FAKE_AMD_CONTROL");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t length = (size_t)snprintf(wanted, sizeof wanted, gpu < 0 ? "%s " : "%s.%d ", name, gpu);
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, wanted, length)) otherwise = atol(line + length);
    if (file) fclose(file);
    return otherwise;
}

static int index_of(void *handle) { return (int)(intptr_t)handle - 100; }

EXPORT int amdsmi_init(uint64_t flags) { CHECKED(amdsmi_init); return flags == 2 ? 0 : 1; }
EXPORT int amdsmi_shut_down(void) { return 0; }

EXPORT int amdsmi_get_socket_handles(uint32_t *count, void **handles) { /* one for each GPU */
    uint32_t gpus = (uint32_t)value("gpus", -1, 2);
    for (uint32_t i = 0; handles && i < *count && i < gpus; i++) handles[i] = (void *)(intptr_t)(200 + i);
    *count = gpus;
    return 0;
}

EXPORT int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles) {
    if (handles) handles[0] = (void *)((intptr_t)socket - 100);
    *count = 1;
    return 0;
}

EXPORT int amdsmi_get_gpu_device_uuid(void *gpu, unsigned *length, char *uuid) {
    CHECKED(amdsmi_get_gpu_device_uuid);
    snprintf(uuid, *length, "9cff740c-0000-1000-80a0-00000000000%d", index_of(gpu));
    return 0;
}

EXPORT int amdsmi_get_gpu_device_bdf(void *gpu, uint64_t *bdf) {
    *bdf = (uint64_t)(0xc1 + index_of(gpu)) << 8;
    return 0;
}

EXPORT int amdsmi_get_gpu_asic_info(void *gpu, void *info) {
    (void)gpu;
    if (value("rocm", -1, 6) == 7) {
        asic_of_7 *new = memset(info, 0xAB, sizeof(asic_of_7));
        strcpy(new->market_name, "AMD Instinct MI300X OAM");
    } else {
        asic_of_6 *old = memset(info, 0xAB, sizeof(asic_of_6));
        strcpy(old->market_name, "AMD Instinct MI300X OAM");
    }
    return 0;
}

EXPORT int amdsmi_get_gpu_activity(void *gpu, engine_usage *usage) {
    CHECKED(amdsmi_get_gpu_activity);
    memset(usage, 0, sizeof *usage);
    usage->gfx = (uint32_t)value("util", index_of(gpu), 0);
    return 0;
}

EXPORT int amdsmi_get_clock_info(void *gpu, int kind, clock_info *info) {
    CHECKED(amdsmi_get_clock_info);
    memset(info, 0, sizeof *info);
    info->clk = kind ? 1300 : (uint32_t)value("clock", index_of(gpu), 2100);
    return 0;
}

EXPORT int amdsmi_get_gpu_memory_total(void *gpu, int kind, uint64_t *bytes) {
    (void)gpu;
    *bytes = kind ? 0 : 192ull << 30;
    return 0;
}

EXPORT int amdsmi_get_gpu_memory_usage(void *gpu, int kind, uint64_t *bytes) {
    *bytes = kind ? 0 : (uint64_t)value("used", index_of(gpu), 300 << 20);
    return 0;
}

EXPORT int amdsmi_get_temp_metric(void *gpu, int sensor, int metric, int64_t *celsius) {
    (void)metric;
    if (sensor == 0) return 2; /* an MI300 has no edge */
    *celsius = value("temp", index_of(gpu), 47);
    return 0;
}

EXPORT int amdsmi_get_energy_count(void *gpu, uint64_t *total, float *unit, uint64_t *at) {
    *total = (uint64_t)value("energy", index_of(gpu), 0);
    *unit = 15.259f; /* microjoules, as an MI200 and an MI300 count */
    *at = 0;
    return 0;
}

EXPORT int amdsmi_get_gpu_total_ecc_count(void *gpu, error_count *count) {
    CHECKED(amdsmi_get_gpu_total_ecc_count);
    memset(count, 0, sizeof *count);
    count->uncorrectable = (uint64_t)value("ecc", index_of(gpu), 0);
    return 0;
}
