/*
 * LD_PRELOAD for QEMU: the ioctls of a /dev/vhost-vsock that does not exist, forwarded to the device's process.
 *
 * QEMU is given a descriptor of /dev/null as its vhostfd.  Every ioctl of vhost's type (0xAF) goes to the unix socket named by
 * VSOCK_SHIM, as { number, size of the argument } and the argument, an eventfd attached where the call has one; back come
 * { result or -errno, size } and so many bytes for the argument.  All others go to the C library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define VHOST_TYPE 0xAF
#define SET_MEM_TABLE 0x03
#define SET_VRING_KICK 0x20 /* and CALL and ERR: the next two */
#define MAX_REGIONS 64

static int channel = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int dial(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("VSOCK_SHIM");
    if (path == NULL || strlen(path) >= sizeof address.sun_path) {
        errno = ENODEV;
        return -1;
    }
    strcpy(address.sun_path, path);
    channel = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (channel >= 0 && connect(channel, (struct sockaddr *)&address, sizeof address) < 0) {
        close(channel);
        channel = -1;
    }
    return channel < 0 ? -1 : 0;
}

static int send_all(const void *data, size_t size) {
    for (const char *at = data; size > 0;) {
        ssize_t done = send(channel, at, size, MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return -1;
        at += done;
        size -= done;
    }
    return 0;
}

static int receive_all(void *data, size_t size) {
    for (char *at = data; size > 0;) {
        ssize_t done = recv(channel, at, size, 0);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return -1;
        at += done;
        size -= done;
    }
    return 0;
}

static int send_head(const uint32_t head[2], int descriptor) {
    struct iovec vector = {(void *)head, 2 * sizeof *head};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    if (descriptor >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control.room;
        struct cmsghdr *part = CMSG_FIRSTHDR(&message);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(sizeof descriptor);
        memcpy(CMSG_DATA(part), &descriptor, sizeof descriptor);
    }
    ssize_t done;
    do
        done = sendmsg(channel, &message, MSG_NOSIGNAL);
    while (done < 0 && errno == EINTR);
    return done == (ssize_t)vector.iov_len ? 0 : -1;
}

static int forward(unsigned long request, void *argument) {
    uint32_t number = request & 0xff, size = _IOC_SIZE(request), answer[2];
    int descriptor = -1;
    if (channel < 0 && dial() < 0)
        return -1;
    if (number == SET_MEM_TABLE) { /* ends in an array whose length it says */
        uint32_t regions = *(uint32_t *)argument;
        if (regions > MAX_REGIONS) {
            errno = E2BIG;
            return -1;
        }
        size = 8 + 32 * regions;
    }
    if (number >= SET_VRING_KICK && number <= SET_VRING_KICK + 2)
        descriptor = ((int *)argument)[1];
    uint32_t head[2] = {(uint32_t)request, size};
    if (send_head(head, descriptor) < 0 || send_all(argument, size) < 0 || receive_all(answer, sizeof answer) < 0 ||
        answer[1] > _IOC_SIZE(request) || receive_all(argument, answer[1]) < 0) {
        errno = EIO;
        return -1;
    }
    if ((int32_t)answer[0] < 0) {
        errno = -(int32_t)answer[0];
        return -1;
    }
    return (int)answer[0];
}

int ioctl(int fd, unsigned long request, ...) {
    static int (*real)(int, unsigned long, ...);
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (_IOC_TYPE(request) == VHOST_TYPE) {
        pthread_mutex_lock(&lock);
        int result = forward(request & 0xffffffff, argument), saved = errno;
        pthread_mutex_unlock(&lock);
        errno = saved;
        return result;
    }
    if (real == NULL)
        real = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
    return real(fd, request, argument);
}
