/*
 * The init of a guest that has nothing else: loads the modules that it is given, then serves vsock port 5000.
 *
 * A connection begins with a line, which says what the rest of it is:
 *     echo          send everything back
 *     sink N        read N bytes, answer with their count and checksum
 *     source N      send N bytes, the i-th being the low byte of (i >> 8) ^ i
 *     dial PORT     connect to that port of the host, and copy between there and here
 *     count         a line with the number of connections so far
 *     off           power off
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char buffer[1 << 16];

static void fail(const char *what) {
    printf("tiny: %s: %s\n", what, strerror(errno));
    fflush(stdout);
    if (getpid() == 1)
        reboot(RB_POWER_OFF);
    _exit(1);
}

static int put(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t done = write(fd, data, size);
        if (done <= 0)
            return -1;
        data += done;
        size -= done;
    }
    return 0;
}

static void copy(int from, int to) {
    ssize_t count;
    while ((count = read(from, buffer, sizeof buffer)) > 0 && put(to, buffer, count) == 0)
        ;
}

static void source(int fd, uint64_t size) {
    for (uint64_t at = 0; at < size;) {
        size_t part = size - at < sizeof buffer ? size - at : sizeof buffer;
        for (size_t i = 0; i < part; i++)
            buffer[i] = ((at + i) >> 8) ^ (at + i);
        if (put(fd, buffer, part) < 0)
            return;
        at += part;
    }
}

static void sink(int fd, uint64_t size) {
    uint64_t sum = 0, at = 0;
    ssize_t count;
    while (at < size && (count = read(fd, buffer, sizeof buffer)) > 0) {
        for (ssize_t i = 0; i < count; i++)
            sum = sum * 31 + (unsigned char)buffer[i];
        at += count;
    }
    dprintf(fd, "%llu %llu\n", (unsigned long long)at, (unsigned long long)sum);
}

static void dial(int fd, unsigned port) {
    struct sockaddr_vm host = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_HOST, .svm_port = port};
    int there = socket(AF_VSOCK, SOCK_STREAM, 0);
    if (connect(there, (struct sockaddr *)&host, sizeof host) < 0) {
        dprintf(fd, "%s\n", strerror(errno));
        return;
    }
    if (fork() == 0) {
        copy(there, fd);
        shutdown(fd, SHUT_WR);
        _exit(0);
    }
    copy(fd, there);
    shutdown(there, SHUT_WR);
    wait(NULL);
}

static void serve(int fd, int number) {
    char line[64] = "";
    for (size_t n = 0; n < sizeof line - 1 && read(fd, line + n, 1) == 1 && line[n] != '\n'; n++)
        ;
    char *space = strchr(line, ' ');
    uint64_t value = space ? strtoull(space + 1, NULL, 10) : 0;
    if (strncmp(line, "echo", 4) == 0)
        copy(fd, fd);
    else if (strncmp(line, "sink", 4) == 0)
        sink(fd, value);
    else if (strncmp(line, "source", 6) == 0)
        source(fd, value);
    else if (strncmp(line, "dial", 4) == 0)
        dial(fd, value);
    else if (strncmp(line, "count", 5) == 0)
        dprintf(fd, "%d\n", number);
    else if (strncmp(line, "off", 3) == 0)
        kill(1, SIGTERM);
    _exit(0);
}

static void off(int number) {
    (void)number;
    reboot(RB_POWER_OFF);
}

int main(int argc, char **argv) {
    mount("dev", "/dev", "devtmpfs", 0, NULL);
    mount("proc", "/proc", "proc", 0, NULL);
    int console = open("/dev/console", O_RDWR);
    for (int i = 0; i < 3 && console >= 0; i++)
        dup2(console, i);
    signal(SIGTERM, off);
    signal(SIGCHLD, SIG_IGN);
    (void)argc, (void)argv;
    FILE *list = fopen("/modules/order", "r");
    char name[256], path[300];
    while (list && fscanf(list, "%255s", name) == 1) {
        snprintf(path, sizeof path, "/modules/%s", name);
        int module = open(path, O_RDONLY);
        if (module < 0 || (syscall(SYS_finit_module, module, "", 0) < 0 && errno != EEXIST && errno != ENODEV))
            fail(path);
        close(module);
    }
    struct sockaddr_vm here = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = 5000};
    int listener = socket(AF_VSOCK, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) < 0 || listen(listener, 128) < 0)
        fail("listen");
    printf("tiny: ready\n");
    fflush(stdout);
    for (int number = 1;; number++) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            continue;
        if (fork() == 0)
            serve(fd, number);
        close(fd);
    }
}
