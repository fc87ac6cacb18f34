/* A stand-in for libnvidia-ml.so.1, driven by a text file. Build:
 *
 *     cc -shared -fPIC -O1 -Wall -Wextra -o libnvidia-ml.so.1 nvml.c
 *
 * and put the folder on LD_LIBRARY_PATH. FAKE_NVML names the state file, read again after 20 ms;
 * without it the box is 8x RTX PRO 6000 with nothing on them. A file that cannot be read is
 * "driver not loaded" (error 9). One fact a line, # starts a comment, later lines win:
 *
 *   gpus N                      N default GPUs (else 8, or as many as the gpu lines name)
 *   gpu INDEX key=value...      uuid name total_mib reserved_mib used_mib capability bus temp
 *                               power_w limit_w util mem_util gen max_gen width max_width
 *                               persistence numa minor clock max_clock bar1_mib ecc
 *                               ecc_errors replays ("_" in a name is a space). used_mib is
 *                               memory that no listed process explains.
 *   driver V | cuda N           580.95.05 and 13000
 *   proc GPU PID MIB            counts while that process lives (a zombie is dead)
 *   ghost GPU PID MIB           counts for ever: a pid of another namespace
 *   charge SUBSTRING MIB        every living process whose command line has SUBSTRING, on the GPU
 *                               whose number ends the command line's first word (VLLM::Worker_TP3)
 *   charge_holders MIB          every living process that holds a descriptor `memfd:nvidiaN`, on
 *                               GPU N (tests/fakes/vllm opens one for each GPU it uses), and whose
 *                               working folder lies below that of FILE
 *   release_after_s S           a dead process's memory stays charged this long. Deaths are noted
 *                               in FILE.deaths, and what was charged in FILE.seen, by whoever
 *                               looks; a process that lived between two looks leaves no trace.
 *   hide_procs 1                process lists are empty, memory is not (containers)
 *   topo A B LEVEL              0 internal, 10 single, 20 multiple, 30 host bridge, 40 node,
 *                               50 system (default: 40 within a half of the box, else 50)
 *   p2p A B STATUS              0 ok (default), 1 chipset not supported, ... 6 unknown
 *   init_error CODE             from nvmlInit (18: driver and library differ; 9; 999)
 *   error WHAT GPU|* CODE       WHAT: memory name uuid procs util temp power pcie pci capability
 *                               handle persistence topo p2p count driver
 *   not_supported WHAT GPU|*    error 3
 *   no_permission WHAT GPU|*    error 4
 *   mig GPU COUNT MIB           MIG is on, with COUNT slices of MIB each
 *   lost GPU                    error 15 from everything about that GPU but its handle
 *   hang WHAT [GPU]             never returns
 *   slow WHAT SECONDS           returns late
 *
 * Functions that are not here are missing from the library, which pynvml reports as
 * FUNCTION_NOT_FOUND; those that newer cards do not support answer NOT_SUPPORTED.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
       NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15,
       VERSION_MISMATCH = 25 };
enum { MAX_GPUS = 32, MAX_PROCS = 256, MAX_RULES = 128, MAX_LINKS = 256 };

typedef unsigned long long u64;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } ProcessInfo;
typedef struct { u64 total, free, used; } Memory;
typedef struct { u64 total, free, used; } Bar1;
typedef struct { unsigned version; u64 total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version; unsigned sensor; int temperature; } TemperatureV1;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} PciInfo;

typedef struct {
    char uuid[96], name[96], bus[32];
    u64 total, reserved, used;
    int major, minor_cc, temp, power, limit, util, mem_util;
    int gen, max_gen, width, max_width, persistence, numa, minor;
    int clock, max_clock, bar1, ecc, ecc_errors, replays;
    int slices, slice_mib; /* MIG */
} Gpu;
typedef struct { int gpu; unsigned pid; u64 mib; int ghost; } Proc;
typedef struct { char what[24]; int gpu, code; double delay; } Rule; /* gpu -1: all of them */
typedef struct { int kind, a, b, value; } Link;                      /* kind 't'opology, 'p'2p */

typedef struct {
    int count, cuda, init_error, hide;
    char driver[64];
    double release_after;
    Gpu gpu[MAX_GPUS];
    Proc proc[MAX_PROCS];
    int procs;
    Rule rule[MAX_RULES];
    int rules;
    Link link[MAX_LINKS];
    int links;
} State;

static int initialised;

/* ------------------------------------------------------------------ processes */

static int slurp(const char *path, char *buffer, int size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int length = read(fd, buffer, size - 1);
    close(fd);
    if (length < 0)
        return -1;
    buffer[length] = 0;
    return length;
}

static int is_alive(unsigned pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    if (slurp(path, text, sizeof text) <= 0)
        return 0;
    char *end = strrchr(text, ')');
    return end && end[1] && end[2] != 'Z' && end[2] != 'X';
}

static void add_proc(State *s, int gpu, unsigned pid, u64 mib, int ghost)
{
    if (gpu < 0 || gpu >= MAX_GPUS || s->procs == MAX_PROCS)
        return;
    for (int i = 0; i < s->procs; i++)
        if (s->proc[i].pid == pid && s->proc[i].gpu == gpu)
            return; /* named twice: by its line and by a charge */
    s->proc[s->procs++] = (Proc){gpu, pid, mib, ghost};
}

static void note(const char *suffix, const char *line)
{
    char path[1024];
    snprintf(path, sizeof path, "%s%s", getenv("FAKE_NVML"), suffix);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    if (write(fd, line, strlen(line)) < 0)
        perror("fake nvml");
    close(fd);
}

/* Seconds since somebody first saw this process dead; notes it the first time. */
static double dead_for(unsigned pid)
{
    char path[1024], line[128];
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    double at = now.tv_sec + now.tv_nsec / 1e9;
    snprintf(path, sizeof path, "%s.deaths", getenv("FAKE_NVML"));
    FILE *file = fopen(path, "re");
    if (file) {
        unsigned other;
        double since;
        while (fgets(line, sizeof line, file))
            if (sscanf(line, "%u %lf", &other, &since) == 2 && other == pid) {
                fclose(file);
                return at - since;
            }
        fclose(file);
    }
    snprintf(line, sizeof line, "%u %.3f\n", pid, at);
    note(".deaths", line);
    return 0;
}

static int still_charged(const State *s, unsigned pid)
{
    if (is_alive(pid))
        return 1;
    return s->release_after > 0 && dead_for(pid) < s->release_after;
}

/* Charges seen earlier, of processes that have died since. */
static void recall_charges(State *s)
{
    char path[1024], line[128];
    snprintf(path, sizeof path, "%s.seen", getenv("FAKE_NVML"));
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    int gpu;
    unsigned pid;
    u64 mib;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%d %u %llu", &gpu, &pid, &mib) == 3 && !is_alive(pid) &&
            still_charged(s, pid))
            add_proc(s, gpu, pid, mib, 0);
    fclose(file);
}

static void remember_charge(int gpu, unsigned pid, u64 mib)
{
    char path[1024], line[128], old[128];
    snprintf(line, sizeof line, "%d %u %llu\n", gpu, pid, mib);
    snprintf(path, sizeof path, "%s.seen", getenv("FAKE_NVML"));
    FILE *file = fopen(path, "re");
    if (file) {
        while (fgets(old, sizeof old, file))
            if (!strcmp(old, line)) {
                fclose(file);
                return;
            }
        fclose(file);
    }
    note(".seen", line);
}

static void charge(State *s, int gpu, unsigned pid, u64 mib)
{
    add_proc(s, gpu, pid, mib, 0);
    if (s->release_after > 0)
        remember_charge(gpu, pid, mib);
}

/* The number that ends the first word of a command line; 0 where there is none. */
static int rank_of(const char *cmdline)
{
    const char *end = cmdline + strcspn(cmdline, " ");
    const char *at = end;
    while (at > cmdline && isdigit((unsigned char)at[-1]))
        at--;
    return at < end ? atoi(at) : 0;
}

/* Whether a process works below the folder of the state file: test boxes side by side do not see each other. */
static int in_this_box(unsigned pid)
{
    char path[64], folder[1024], box[1024];
    snprintf(box, sizeof box, "%s", getenv("FAKE_NVML"));
    char *slash = strrchr(box, '/');
    if (!slash)
        return 1;
    slash[1] = 0;
    snprintf(path, sizeof path, "/proc/%u/cwd", pid);
    int length = readlink(path, folder, sizeof folder - 1);
    return length > 0 && !strncmp(folder, box, strlen(box));
}

static void charge_by_descriptors(State *s, unsigned pid, u64 mib)
{
    char folder[64], path[512], target[256];
    if (!in_this_box(pid))
        return;
    snprintf(folder, sizeof folder, "/proc/%u/fd", pid);
    DIR *dir = opendir(folder);
    if (!dir)
        return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        int length = readlink(path, target, sizeof target - 1);
        if (length <= 0)
            continue;
        target[length] = 0;
        char *found = strstr(target, "memfd:nvidia");
        if (found && isdigit((unsigned char)found[12]))
            charge(s, atoi(found + 12), pid, mib);
    }
    closedir(dir);
}

static void charge_processes(State *s, const char *needle, u64 mib)
{
    char path[64], text[4096];
    DIR *dir = opendir("/proc");
    if (!dir)
        return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        unsigned pid = strtoul(entry->d_name, NULL, 10);
        if (!pid || !is_alive(pid))
            continue;
        if (!needle) {
            charge_by_descriptors(s, pid, mib);
            continue;
        }
        snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
        int length = slurp(path, text, sizeof text);
        for (int i = 0; i < length; i++)
            if (!text[i])
                text[i] = i + 1 < length ? ' ' : 0;
        if (length > 0 && strstr(text, needle))
            charge(s, rank_of(text), pid, mib);
    }
    closedir(dir);
}

/* ------------------------------------------------------------------ the state file */

static void default_gpu(Gpu *g, int index)
{
    memset(g, 0, sizeof *g);
    snprintf(g->uuid, sizeof g->uuid, "GPU-5fa4e000-0000-4000-8000-%012d", index);
    snprintf(g->name, sizeof g->name, "NVIDIA RTX PRO 6000 Blackwell Server Edition");
    snprintf(g->bus, sizeof g->bus, "00000000:%02X:00.0", 1 + 16 * (index / 2) + index % 2);
    g->total = 97887;
    g->reserved = 636;
    g->major = 12;
    g->temp = 34;
    g->power = 31;
    g->limit = 600;
    g->gen = g->max_gen = 5;
    g->width = g->max_width = 16;
    g->persistence = 1;
    g->numa = index / 4;
    g->minor = index;
    g->clock = 180;
    g->max_clock = 3090;
    g->bar1 = 131072;
    g->ecc = 1;
}

static void set_number(Gpu *g, const char *key, const char *value)
{
    struct { const char *key; int *field; } ints[] = {
        {"temp", &g->temp},   {"power_w", &g->power},     {"limit_w", &g->limit},
        {"util", &g->util},   {"mem_util", &g->mem_util}, {"gen", &g->gen},
        {"width", &g->width}, {"max_gen", &g->max_gen},   {"max_width", &g->max_width},
        {"numa", &g->numa},   {"minor", &g->minor},       {"persistence", &g->persistence},
        {"clock", &g->clock}, {"max_clock", &g->max_clock}, {"bar1_mib", &g->bar1},
        {"ecc", &g->ecc},     {"ecc_errors", &g->ecc_errors}, {"replays", &g->replays},
    };
    for (unsigned i = 0; i < sizeof ints / sizeof *ints; i++)
        if (!strcmp(key, ints[i].key))
            *ints[i].field = atoi(value);
}

static void set_gpu_key(Gpu *g, const char *key, const char *value)
{
    if (!strcmp(key, "uuid"))
        snprintf(g->uuid, sizeof g->uuid, "%s", value);
    else if (!strcmp(key, "bus"))
        snprintf(g->bus, sizeof g->bus, "%s", value);
    else if (!strcmp(key, "total_mib"))
        g->total = strtoull(value, NULL, 10);
    else if (!strcmp(key, "reserved_mib"))
        g->reserved = strtoull(value, NULL, 10);
    else if (!strcmp(key, "used_mib"))
        g->used = strtoull(value, NULL, 10);
    else if (!strcmp(key, "capability"))
        sscanf(value, "%d.%d", &g->major, &g->minor_cc);
    else if (!strcmp(key, "name")) {
        snprintf(g->name, sizeof g->name, "%s", value);
        for (char *c = g->name; *c; c++)
            if (*c == '_')
                *c = ' ';
    } else
        set_number(g, key, value);
}

static void read_gpu_line(State *s, char *words, int *named)
{
    char *save, *word = strtok_r(words, " \t", &save);
    int index = word ? atoi(word) : -1;
    if (index < 0 || index >= MAX_GPUS)
        return;
    if (index + 1 > *named)
        *named = index + 1;
    while ((word = strtok_r(NULL, " \t", &save))) {
        char *equals = strchr(word, '=');
        if (!equals)
            continue;
        *equals = 0;
        set_gpu_key(&s->gpu[index], word, equals + 1);
    }
}

static void add_rule(State *s, const char *what, const char *gpu, int code, double delay)
{
    if (s->rules == MAX_RULES)
        return;
    Rule *rule = &s->rule[s->rules++];
    snprintf(rule->what, sizeof rule->what, "%s", what);
    rule->gpu = *gpu && *gpu != '*' ? atoi(gpu) : -1;
    rule->code = code;
    rule->delay = delay;
}

static int read_rule_line(State *s, const char *key, const char *rest)
{
    char what[24] = "", gpu[24] = "";
    double number = 0;
    int words = sscanf(rest, "%23s %23s %lf", what, gpu, &number);
    if (!strcmp(key, "error") && words == 3)
        add_rule(s, what, gpu, (int)number, 0);
    else if (!strcmp(key, "not_supported"))
        add_rule(s, what, gpu, NOT_SUPPORTED, 0);
    else if (!strcmp(key, "no_permission"))
        add_rule(s, what, gpu, NO_PERMISSION, 0);
    else if (!strcmp(key, "lost"))
        add_rule(s, "*", what, GPU_IS_LOST, 0);
    else if (!strcmp(key, "hang"))
        add_rule(s, what, gpu, OK, 1e9);
    else if (!strcmp(key, "slow"))
        add_rule(s, what, "*", OK, atof(gpu));
    else
        return 0;
    return 1;
}

typedef struct { char needle[128]; u64 mib; int used; } Charge;

static void read_line(State *s, char *line, int *named, Charge *charges, Charge *holders)
{
    char key[32] = "", text[128] = "";
    int at = 0, a, b, value;
    unsigned pid;
    u64 mib;
    line[strcspn(line, "#\r\n")] = 0;
    if (sscanf(line, "%31s %n", key, &at) < 1)
        return;
    char *rest = line + at;
    if (read_rule_line(s, key, rest))
        return;
    if (!strcmp(key, "gpus"))
        s->count = atoi(rest) < MAX_GPUS ? atoi(rest) : MAX_GPUS;
    else if (!strcmp(key, "gpu"))
        read_gpu_line(s, rest, named);
    else if (!strcmp(key, "mig") && sscanf(rest, "%d %d %d", &a, &b, &value) == 3) {
        if (a >= 0 && a < MAX_GPUS) {
            s->gpu[a].slices = b;
            s->gpu[a].slice_mib = value;
        }
    } else if (!strcmp(key, "driver"))
        sscanf(rest, "%63s", s->driver);
    else if (!strcmp(key, "cuda"))
        s->cuda = atoi(rest);
    else if (!strcmp(key, "init_error"))
        s->init_error = atoi(rest);
    else if (!strcmp(key, "hide_procs"))
        s->hide = atoi(rest);
    else if (!strcmp(key, "release_after_s"))
        s->release_after = atof(rest);
    else if (!strcmp(key, "proc") && sscanf(rest, "%d %u %llu", &a, &pid, &mib) == 3)
        add_proc(s, a, pid, mib, 0);
    else if (!strcmp(key, "ghost") && sscanf(rest, "%d %u %llu", &a, &pid, &mib) == 3)
        add_proc(s, a, pid, mib, 1);
    else if (!strcmp(key, "charge") && sscanf(rest, "%127s %llu", text, &mib) == 2) {
        for (int i = 0; i < 8; i++)
            if (!charges[i].used) {
                charges[i].used = 1;
                charges[i].mib = mib;
                strcpy(charges[i].needle, text);
                break;
            }
    } else if (!strcmp(key, "charge_holders"))
        *holders = (Charge){.mib = strtoull(rest, NULL, 10), .used = 1};
    else if ((!strcmp(key, "topo") || !strcmp(key, "p2p")) && s->links < MAX_LINKS &&
             sscanf(rest, "%d %d %d", &a, &b, &value) == 3)
        s->link[s->links++] = (Link){key[0], a, b, value};
}

/* After the whole file is read, because release_after_s may stand below the processes. */
static void drop_released(State *s)
{
    int kept = 0;
    for (int i = 0; i < s->procs; i++)
        if (s->proc[i].ghost || still_charged(s, s->proc[i].pid))
            s->proc[kept++] = s->proc[i];
    s->procs = kept;
}

static int read_state(State *s)
{
    char line[1024];
    int named = 0;
    Charge charges[8] = {0}, holders = {0};
    memset(s, 0, sizeof *s);
    strcpy(s->driver, "580.95.05");
    s->cuda = 13000;
    for (int i = 0; i < MAX_GPUS; i++)
        default_gpu(&s->gpu[i], i);
    const char *path = getenv("FAKE_NVML");
    if (!path || !*path) {
        s->count = 8;
        return OK;
    }
    FILE *file = fopen(path, "re");
    if (!file)
        return DRIVER_NOT_LOADED;
    s->count = -1;
    while (fgets(line, sizeof line, file))
        read_line(s, line, &named, charges, &holders);
    fclose(file);
    if (s->count < 0)
        s->count = named ? named : 8;
    drop_released(s);
    for (int i = 0; i < 8; i++)
        if (charges[i].used)
            charge_processes(s, charges[i].needle, charges[i].mib);
    if (holders.used)
        charge_processes(s, NULL, holders.mib);
    if (s->release_after > 0)
        recall_charges(s);
    return OK;
}

/* ------------------------------------------------------------------ what every call does first */

/* One look at /proc serves the calls of the next 20 ms: an inventory makes hundreds of them. */
static int current_state(State *s)
{
    static State kept;
    static double kept_at;
    static int kept_code;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double at = now.tv_sec + now.tv_nsec / 1e9;
    if (!kept_at || at - kept_at > 0.02) {
        kept_code = read_state(&kept);
        clock_gettime(CLOCK_MONOTONIC, &now);
        kept_at = now.tv_sec + now.tv_nsec / 1e9;
    }
    *s = kept;
    return kept_code;
}

static void wait_seconds(double seconds)
{
    struct timespec left = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left))
        ;
}

static int apply_rules(const State *s, const char *what, int gpu)
{
    for (int i = 0; i < s->rules; i++) {
        const Rule *rule = &s->rule[i];
        int named = !strcmp(rule->what, what) ||
                    (!strcmp(rule->what, "*") && gpu >= 0 && strcmp(what, "handle"));
        if (!named || (rule->gpu >= 0 && rule->gpu != gpu))
            continue;
        if (rule->delay > 0)
            wait_seconds(rule->delay);
        if (rule->code)
            return rule->code;
    }
    return OK;
}

/* Handles are index + 1, so that NULL is never one; those of MIG slices have the slice above that. */
static int index_of(void *handle) { return (int)((size_t)handle % 1000) - 1; }
static int slice_of(void *handle) { return (int)((size_t)handle / 1000) - 1; }

static int enter(State *s, const char *what, int gpu)
{
    if (!initialised)
        return UNINITIALIZED;
    int code = current_state(s);
    if (code)
        return code;
    if (gpu < -1 || gpu >= s->count)
        return INVALID_ARGUMENT;
    return apply_rules(s, what, gpu);
}

static u64 used_mib(const State *s, int gpu)
{
    u64 total = s->gpu[gpu].used + s->gpu[gpu].reserved;
    for (int i = 0; i < s->procs; i++)
        if (s->proc[i].gpu == gpu)
            total += s->proc[i].mib;
    return total < s->gpu[gpu].total ? total : s->gpu[gpu].total;
}

static int copy_text(const char *text, char *out, unsigned size)
{
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

#define DEVICE(what)                                                                               \
    State s;                                                                                       \
    int gpu = index_of(device), code = gpu < 0 ? INVALID_ARGUMENT : enter(&s, what, gpu);          \
    if (code)                                                                                      \
        return code;                                                                               \
    Gpu *g = &s.gpu[gpu];                                                                          \
    (void)g

#define NUMBER(function, what, type, value)                                                        \
    int function(void *device, type *out)                                                          \
    {                                                                                              \
        DEVICE(what);                                                                              \
        *out = (value);                                                                            \
        return OK;                                                                                 \
    }

#define UNSUPPORTED(function)                                                                      \
    int function(void *device)                                                                     \
    {                                                                                              \
        (void)device;                                                                              \
        return initialised ? NOT_SUPPORTED : UNINITIALIZED;                                        \
    }

/* ------------------------------------------------------------------ library and system */

int nvmlInitWithFlags(unsigned flags)
{
    State s;
    (void)flags;
    int code = read_state(&s);
    if (!code)
        code = s.init_error;
    if (!code)
        code = apply_rules(&s, "init", -1);
    if (!code)
        initialised++;
    return code;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    if (!initialised)
        return UNINITIALIZED;
    initialised--;
    return OK;
}

const char *nvmlErrorString(int code)
{
    static const struct { int code; const char *text; } names[] = {
        {0, "The operation was successful"},
        {1, "Uninitialized"},
        {2, "Invalid Argument"},
        {3, "Not Supported"},
        {4, "Insufficient Permissions"},
        {6, "Not Found"},
        {7, "Insufficient Size"},
        {9, "Driver Not Loaded"},
        {10, "Timeout"},
        {12, "NVML Shared Library Not Found"},
        {13, "Function Not Found"},
        {15, "GPU is lost"},
        {16, "GPU requires reset"},
        {17, "The operating system has blocked the request"},
        {18, "Driver/library version mismatch"},
        {25, "Argument version mismatch"},
        {999, "Unknown Error"},
    };
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code)
            return names[i].text;
    return "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    State s;
    int code = enter(&s, "driver", -1);
    return code ? code : copy_text(s.driver, out, size);
}

int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    char text[80];
    State s;
    int code = enter(&s, "driver", -1);
    if (code)
        return code;
    snprintf(text, sizeof text, "13.%s", s.driver);
    return copy_text(text, out, size);
}

int nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    State s;
    int code = enter(&s, "driver", -1);
    if (!code)
        *out = s.cuda;
    return code;
}

int nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size)
{
    char path[64], text[1024];
    if (!initialised)
        return UNINITIALIZED;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    return slurp(path, text, sizeof text) > 0 ? copy_text(text, out, size) : NOT_FOUND;
}

/* ------------------------------------------------------------------ devices */

int nvmlDeviceGetCount_v2(unsigned *out)
{
    State s;
    int code = enter(&s, "count", -1);
    if (!code)
        *out = s.count;
    return code;
}

int nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    State s;
    int code = enter(&s, "handle", index < MAX_GPUS ? (int)index : MAX_GPUS);
    if (!code)
        *out = (void *)(size_t)(index + 1);
    return code;
}

int nvmlDeviceGetHandleByIndex(unsigned index, void **out)
{
    return nvmlDeviceGetHandleByIndex_v2(index, out);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **out)
{
    State s;
    int code = enter(&s, "handle", -1);
    if (code)
        return code;
    for (int i = 0; i < s.count; i++)
        if (!strcmp(s.gpu[i].uuid, uuid)) { /* the whole one: NVML knows no prefixes */
            *out = (void *)(size_t)(i + 1);
            return apply_rules(&s, "handle", i);
        }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out)
{
    State s;
    unsigned want[4], have[4];
    int code = enter(&s, "handle", -1);
    if (code)
        return code;
    if (sscanf(bus, "%x:%x:%x.%x", &want[0], &want[1], &want[2], &want[3]) < 3)
        return INVALID_ARGUMENT;
    for (int i = 0; i < s.count; i++)
        if (sscanf(s.gpu[i].bus, "%x:%x:%x.%x", &have[0], &have[1], &have[2], &have[3]) >= 3 &&
            !memcmp(want, have, 3 * sizeof *want)) {
            *out = (void *)(size_t)(i + 1);
            return apply_rules(&s, "handle", i);
        }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *device, char *out, unsigned size)
{
    if (slice_of(device) >= 0) {
        char text[96];
        snprintf(text, sizeof text, "MIG-5fa4e000-0000-4000-8000-%06d%06d", index_of(device),
                 slice_of(device));
        return copy_text(text, out, size);
    }
    DEVICE("uuid");
    return copy_text(g->uuid, out, size);
}

int nvmlDeviceGetName(void *device, char *out, unsigned size)
{
    DEVICE("name");
    return copy_text(g->name, out, size);
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    DEVICE("capability");
    *major = g->major;
    *minor = g->minor_cc;
    return OK;
}

int nvmlDeviceGetPciInfo_v3(void *device, PciInfo *out)
{
    DEVICE("pci");
    memset(out, 0, sizeof *out);
    sscanf(g->bus, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    out->pci_device_id = 0x2bb510de;
    out->pci_subsystem_id = 0x204e10de;
    snprintf(out->bus_id, sizeof out->bus_id, "%s", g->bus);
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.0",
             out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
    return OK;
}

static int slice_memory(void *device, Memory *out)
{
    State s;
    int code = enter(&s, "slice", index_of(device));
    if (code)
        return code;
    out->total = (u64)s.gpu[index_of(device)].slice_mib << 20;
    out->used = 64ull << 20;
    out->free = out->total - out->used;
    return OK;
}

/* v1 counts the reserved part as used, v2 apart, as the real calls do. */
int nvmlDeviceGetMemoryInfo(void *device, Memory *out)
{
    if (slice_of(device) >= 0) /* readable where the whole GPU is not, as in containers */
        return slice_memory(device, out);
    DEVICE("memory");
    out->total = g->total << 20;
    out->used = used_mib(&s, gpu) << 20;
    out->free = out->total - out->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, MemoryV2 *out)
{
    if (out->version != (sizeof *out | 2u << 24))
        return VERSION_MISMATCH;
    DEVICE("memory");
    u64 used = used_mib(&s, gpu);
    out->total = g->total << 20;
    out->reserved = g->reserved << 20;
    out->used = (used - (g->reserved < used ? g->reserved : used)) << 20;
    out->free = (g->total - used) << 20;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, ProcessInfo *out)
{
    DEVICE("procs");
    unsigned room = *count, found = 0;
    for (int i = 0; i < s.procs && !s.hide; i++) {
        const Proc *p = &s.proc[i];
        if (p->gpu != gpu || !p->mib)
            continue;
        if (out && found < room)
            out[found] = (ProcessInfo){p->pid, p->mib << 20, ~0u, ~0u};
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, ProcessInfo *out)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, ProcessInfo *out)
{
    (void)out;
    DEVICE("procs");
    *count = 0;
    return OK;
}

int nvmlDeviceGetUtilizationRates(void *device, Utilization *out)
{
    DEVICE("util");
    *out = (Utilization){g->util, g->mem_util};
    return OK;
}

int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *out)
{
    (void)sensor;
    DEVICE("temp");
    *out = g->temp;
    return OK;
}

int nvmlDeviceGetTemperatureV(void *device, TemperatureV1 *out)
{
    if (out->version != (sizeof *out | 1u << 24))
        return VERSION_MISMATCH;
    DEVICE("temp");
    out->temperature = g->temp;
    return OK;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    DEVICE("mig");
    *current = *pending = g->slices > 0;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *out)
{
    DEVICE("mig");
    *out = 4;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **out)
{
    DEVICE("mig");
    if ((int)index >= g->slices)
        return NOT_FOUND;
    *out = (void *)(size_t)(gpu + 1 + 1000 * (index + 1));
    return OK;
}

int nvmlDeviceGetBAR1MemoryInfo(void *device, Bar1 *out)
{
    DEVICE("bar1");
    *out = (Bar1){(u64)g->bar1 << 20, (u64)(g->bar1 - 2) << 20, 2ull << 20};
    return OK;
}

int nvmlDeviceGetEccMode(void *device, unsigned *current, unsigned *pending)
{
    DEVICE("ecc");
    *current = *pending = g->ecc;
    return OK;
}

int nvmlDeviceGetTotalEccErrors(void *device, unsigned type, unsigned counter, u64 *out)
{
    (void)type;
    (void)counter;
    DEVICE("ecc");
    *out = g->ecc_errors;
    return OK;
}

int nvmlDeviceGetClockInfo(void *device, unsigned type, unsigned *out)
{
    DEVICE("clock");
    *out = type == 2 ? 405 : (unsigned)g->clock; /* 2: memory */
    return OK;
}

int nvmlDeviceGetMaxClockInfo(void *device, unsigned type, unsigned *out)
{
    DEVICE("clock");
    *out = type == 2 ? 12481 : (unsigned)g->max_clock;
    return OK;
}

int nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned *low, unsigned *high)
{
    DEVICE("power");
    *low = 300 * 1000;
    *high = 600 * 1000;
    return OK;
}

NUMBER(nvmlDeviceGetIndex, "index", unsigned, gpu)
NUMBER(nvmlDeviceGetMinorNumber, "index", unsigned, g->minor)
NUMBER(nvmlDeviceGetPowerUsage, "power", unsigned, g->power * 1000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power", unsigned, g->limit * 1000)
NUMBER(nvmlDeviceGetPowerManagementLimit, "power", unsigned, g->limit * 1000)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power", unsigned, 600 * 1000)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie", unsigned, g->gen)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie", unsigned, g->max_gen)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie", unsigned, g->width)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie", unsigned, g->max_width)
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie", unsigned, g->replays)
NUMBER(nvmlDeviceGetPersistenceMode, "persistence", unsigned, g->persistence)
NUMBER(nvmlDeviceGetNumaNodeId, "numa", int, g->numa)

UNSUPPORTED(nvmlDeviceGetFanSpeed)
UNSUPPORTED(nvmlDeviceGetSerial)
UNSUPPORTED(nvmlDeviceGetNvLinkState)
UNSUPPORTED(nvmlDeviceGetFieldValues)

/* ------------------------------------------------------------------ pairs */

static int pair_value(const State *s, int kind, int a, int b, int otherwise)
{
    int value = otherwise;
    for (int i = 0; i < s->links; i++) {
        const Link *l = &s->link[i];
        if (l->kind == kind && ((l->a == a && l->b == b) || (l->a == b && l->b == a)))
            value = l->value;
    }
    return value;
}

int nvmlDeviceGetTopologyCommonAncestor(void *device, void *other, int *out)
{
    DEVICE("topo");
    int peer = index_of(other);
    if (peer < 0 || peer >= s.count)
        return INVALID_ARGUMENT;
    int level = gpu == peer ? 0 : g->numa == s.gpu[peer].numa ? 40 : 50;
    *out = pair_value(&s, 't', gpu, peer, level);
    return OK;
}

int nvmlDeviceGetP2PStatus(void *device, void *other, unsigned which, int *out)
{
    (void)which;
    DEVICE("p2p");
    int peer = index_of(other);
    if (peer < 0 || peer >= s.count)
        return INVALID_ARGUMENT;
    *out = pair_value(&s, 'p', gpu, peer, 0);
    return OK;
}
