/* Framing, the few msgpack forms and the hash that relay.c and client.c share.
 *
 * Frames are u32 big-endian length + one msgpack array [type, ...]; see protocol/ptymux/messages.py.  OUTPUT frames have
 * the same fixed-width header as the agent's, so that both contestants put the same bytes on the wire.
 *
 * Not a msgpack library: the writer knows what the bench sends, the reader reads anything but only to skip most of it.
 */
#ifndef BENCH_WIRE_H
#define BENCH_WIRE_H

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    T_HELLO = 0x01, T_WELCOME = 0x02, T_ERROR = 0x03, T_PING = 0x04, T_PONG = 0x05, T_REQUEST = 0x06, T_RESPONSE = 0x07,
    T_FAILURE = 0x08, T_OUTPUT = 0x10, T_MARK = 0x11, T_GAP = 0x12, T_CREDIT = 0x13, T_DETACHED = 0x14, T_INPUT = 0x15,
    T_NOTICE = 0x1A,
};

#define MAX_FRAME (1u << 20)
#define MAX_OUTPUT_DATA (64u << 10)
#define OUTPUT_BODY 21u /* array of 4, 0x10, uint32 channel, uint64 offset, bin32 size */
#define OUTPUT_HEADER (4u + OUTPUT_BODY)

static inline void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
static inline void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- big-endian numbers ------------------------------------------------------------------------ */
static inline void put_be(unsigned char *p, uint64_t value, int size)
{
    for (int i = size - 1; i >= 0; i--, value >>= 8)
        p[i] = (unsigned char)value;
}

static inline uint64_t get_be(const unsigned char *p, int size)
{
    uint64_t value = 0;
    for (int i = 0; i < size; i++)
        value = value << 8 | p[i];
    return value;
}

/* --- the OUTPUT header ------------------------------------------------------------------------- */
static inline void put_output_header(unsigned char *p, uint32_t channel, uint64_t offset, uint32_t size)
{
    put_be(p, OUTPUT_BODY + size, 4);
    p[4] = 0x94;
    p[5] = T_OUTPUT;
    p[6] = 0xCE;
    put_be(p + 7, channel, 4);
    p[11] = 0xCF;
    put_be(p + 12, offset, 8);
    p[20] = 0xC6;
    put_be(p + 21, size, 4);
}

/* `body` has at least OUTPUT_BODY bytes: is it the fixed form? */
static inline int is_output_header(const unsigned char *body)
{
    return body[0] == 0x94 && body[1] == T_OUTPUT && body[2] == 0xCE && body[7] == 0xCF && body[16] == 0xC6;
}

/* --- writing ----------------------------------------------------------------------------------- */
struct out {
    unsigned char *data;
    size_t size, room;
    size_t frame; /* where the open frame begins */
};

static inline unsigned char *out_grow(struct out *o, size_t more)
{
    if (o->size + more > o->room) {
        o->room = (o->size + more) * 2;
        o->data = realloc(o->data, o->room);
        if (!o->data)
            die("out of memory");
    }
    o->size += more;
    return o->data + o->size - more;
}

static inline void out_bytes(struct out *o, const void *data, size_t size)
{
    if (size)
        memcpy(out_grow(o, size), data, size);
}

static inline void out_byte(struct out *o, unsigned value) { *out_grow(o, 1) = (unsigned char)value; }
static inline void out_nil(struct out *o) { out_byte(o, 0xC0); }
static inline void out_bool(struct out *o, int value) { out_byte(o, value ? 0xC3 : 0xC2); }
static inline void out_map(struct out *o, unsigned count) { out_byte(o, 0x80 | count); } /* at most 15 */

static inline void out_array(struct out *o, unsigned count)
{
    if (count < 16) {
        out_byte(o, 0x90 | count);
    } else {
        unsigned char *p = out_grow(o, 3);
        p[0] = 0xDC;
        put_be(p + 1, count, 2);
    }
}

static inline void out_uint(struct out *o, uint64_t value)
{
    int size = value <= 0xFF ? 1 : value <= 0xFFFF ? 2 : value <= 0xFFFFFFFF ? 4 : 8;
    if (value < 0x80) {
        out_byte(o, (unsigned)value);
        return;
    }
    unsigned char *p = out_grow(o, 1 + (size_t)size);
    p[0] = size == 1 ? 0xCC : size == 2 ? 0xCD : size == 4 ? 0xCE : 0xCF;
    put_be(p + 1, value, size);
}

static inline void out_bin(struct out *o, const void *data, size_t size)
{
    unsigned char *p = out_grow(o, 5);
    p[0] = 0xC6;
    put_be(p + 1, size, 4);
    out_bytes(o, data, size);
}

static inline void out_text(struct out *o, const char *text)
{
    size_t size = strlen(text);
    if (size < 32) {
        out_byte(o, 0xA0 | (unsigned)size);
    } else {
        unsigned char *p = out_grow(o, 5);
        p[0] = 0xDB;
        put_be(p + 1, size, 4);
    }
    out_bytes(o, text, size);
}

/* `fields` without the type itself */
static inline void frame_begin(struct out *o, unsigned type, unsigned fields)
{
    o->frame = o->size;
    out_grow(o, 4);
    out_array(o, fields + 1);
    out_uint(o, type);
}

static inline void frame_end(struct out *o)
{
    put_be(o->data + o->frame, o->size - o->frame - 4, 4);
}

/* --- reading ----------------------------------------------------------------------------------- */
enum kind { NIL, BOOL, UINT, INT, FLOAT, TEXT, BIN, ARRAY, MAP, EXT };

struct in {
    const unsigned char *at, *end;
};

struct item {
    enum kind kind;
    uint64_t value;            /* of a number; bytes of a text or bin; items of an array; pairs of a map */
    const unsigned char *data; /* of a text, bin or ext */
};

static inline const unsigned char *in_take(struct in *in, uint64_t size)
{
    if ((uint64_t)(in->end - in->at) < size)
        die("malformed frame: cut short");
    in->at += size;
    return in->at - size;
}

static inline struct item in_sized(struct in *in, enum kind kind, int width, unsigned extra)
{
    struct item item = {kind, get_be(in_take(in, (uint64_t)width), width), NULL};
    if (kind == TEXT || kind == BIN || kind == EXT)
        item.data = in_take(in, item.value + extra);
    return item;
}

static inline struct item in_next(struct in *in)
{
    unsigned head = *in_take(in, 1);
    struct item item = {NIL, 0, NULL};
    if (head < 0x80) {
        item = (struct item){UINT, head, NULL};
    } else if (head < 0x90) {
        item = (struct item){MAP, head & 0x0F, NULL};
    } else if (head < 0xA0) {
        item = (struct item){ARRAY, head & 0x0F, NULL};
    } else if (head < 0xC0) {
        item = (struct item){TEXT, head & 0x1F, NULL};
        item.data = in_take(in, item.value);
    } else if (head >= 0xE0) {
        item = (struct item){INT, (uint64_t)(int64_t)(int8_t)head, NULL};
    } else {
        switch (head) {
        case 0xC0: break;
        case 0xC2: case 0xC3: item = (struct item){BOOL, head & 1, NULL}; break;
        case 0xC4: case 0xC5: case 0xC6: return in_sized(in, BIN, 1 << (head - 0xC4), 0);
        case 0xC7: case 0xC8: case 0xC9: return in_sized(in, EXT, 1 << (head - 0xC7), 1);
        case 0xCA: return in_sized(in, FLOAT, 4, 0);
        case 0xCB: return in_sized(in, FLOAT, 8, 0);
        case 0xCC: case 0xCD: case 0xCE: case 0xCF: return in_sized(in, UINT, 1 << (head - 0xCC), 0);
        case 0xD0: case 0xD1: case 0xD2: case 0xD3: return in_sized(in, INT, 1 << (head - 0xD0), 0);
        case 0xD4: case 0xD5: case 0xD6: case 0xD7: case 0xD8:
            item = (struct item){EXT, 1u << (head - 0xD4), in_take(in, 1 + (1u << (head - 0xD4)))};
            break;
        case 0xD9: case 0xDA: case 0xDB: return in_sized(in, TEXT, 1 << (head - 0xD9), 0);
        case 0xDC: case 0xDD: return in_sized(in, ARRAY, 2 << (head - 0xDC), 0);
        case 0xDE: case 0xDF: return in_sized(in, MAP, 2 << (head - 0xDE), 0);
        default: die("malformed frame: byte 0x%02x", head);
        }
    }
    return item;
}

static inline void in_skip(struct in *in)
{
    struct item item = in_next(in);
    uint64_t inside = item.kind == ARRAY ? item.value : item.kind == MAP ? item.value * 2 : 0;
    while (inside--)
        in_skip(in);
}

static inline struct item in_want(struct in *in, enum kind kind, const char *what)
{
    struct item item = in_next(in);
    if (item.kind != kind)
        die("malformed frame: %s has the wrong type", what);
    return item;
}

static inline uint64_t in_uint(struct in *in, const char *what) { return in_want(in, UINT, what).value; }

static inline int is_text(struct item item, const char *text)
{
    return item.kind == TEXT && item.value == strlen(text) && !memcmp(item.data, text, item.value);
}

/* A copy that ends in NUL, for printing. */
static inline char *text_of(struct item item)
{
    char *copy = calloc(1, item.value + 1);
    if (!copy)
        die("out of memory");
    if (item.value)
        memcpy(copy, item.data, item.value);
    return copy;
}

/* --- XXH64, seed 0, for bytes that come in pieces ------------------------------------------------
 * Some 10 GB/s: never the bottleneck beside a PTY, and a well-known function has known answers to be tested with. */
#define XXH_1 0x9E3779B185EBCA87ull
#define XXH_2 0xC2B2AE3D27D4EB4Full
#define XXH_3 0x165667B19E3779F9ull
#define XXH_4 0x85EBCA77C2B2AE63ull
#define XXH_5 0x27D4EB2F165667C5ull

struct hash {
    uint64_t lane[4], total;
    unsigned char held[32];
    size_t holds;
};

static inline uint64_t rotate(uint64_t v, int by) { return v << by | v >> (64 - by); }
static inline uint64_t hash_round(uint64_t lane, uint64_t word) { return rotate(lane + word * XXH_2, 31) * XXH_1; }

static inline void hash_init(struct hash *h)
{
    *h = (struct hash){.lane = {XXH_1 + XXH_2, XXH_2, 0, 0 - XXH_1}};
}

static inline void hash_stripes(struct hash *h, const unsigned char *p, size_t stripes)
{
    uint64_t a = h->lane[0], b = h->lane[1], c = h->lane[2], d = h->lane[3], w[4];
    for (; stripes--; p += 32) {
        memcpy(w, p, 32); /* little-endian machines only, like the rest of the bench */
        a = hash_round(a, w[0]);
        b = hash_round(b, w[1]);
        c = hash_round(c, w[2]);
        d = hash_round(d, w[3]);
    }
    h->lane[0] = a;
    h->lane[1] = b;
    h->lane[2] = c;
    h->lane[3] = d;
}

static inline void hash_feed(struct hash *h, const unsigned char *p, size_t size)
{
    h->total += size;
    if (h->holds) {
        size_t take = 32 - h->holds < size ? 32 - h->holds : size;
        memcpy(h->held + h->holds, p, take);
        h->holds += take;
        p += take;
        size -= take;
        if (h->holds < 32)
            return;
        hash_stripes(h, h->held, 1);
        h->holds = 0;
    }
    hash_stripes(h, p, size / 32);
    h->holds = size % 32;
    memcpy(h->held, p + size - h->holds, h->holds);
}

static inline uint64_t hash_value(const struct hash *h)
{
    uint64_t v = h->lane[2] + XXH_5, word;
    if (h->total >= 32) {
        v = rotate(h->lane[0], 1) + rotate(h->lane[1], 7) + rotate(h->lane[2], 12) + rotate(h->lane[3], 18);
        for (int i = 0; i < 4; i++)
            v = (v ^ hash_round(0, h->lane[i])) * XXH_1 + XXH_4;
    }
    v += h->total;
    const unsigned char *p = h->held;
    size_t left = h->holds;
    for (; left >= 8; left -= 8, p += 8) {
        memcpy(&word, p, 8);
        v = rotate(v ^ hash_round(0, word), 27) * XXH_1 + XXH_4;
    }
    if (left >= 4) {
        uint32_t half;
        memcpy(&half, p, 4);
        v = rotate(v ^ half * XXH_1, 23) * XXH_2 + XXH_3;
        left -= 4;
        p += 4;
    }
    for (; left--; p++)
        v = rotate(v ^ *p * XXH_5, 11) * XXH_1;
    v = (v ^ v >> 33) * XXH_2;
    v = (v ^ v >> 29) * XXH_3;
    return v ^ v >> 32;
}

#endif
