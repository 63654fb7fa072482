/*
 * A client of Pabal's mailbox in one file of C99 and POSIX, without any library.
 *
 *   cc -O2 -o mailbox mailbox.c
 *
 *   mailbox DIR CLIENT publish QUEUE MESSAGE          prints the key of the message
 *   mailbox DIR CLIENT consume QUEUE [WAIT_MS]        prints key, lease and payload, each on a line of its own
 *   mailbox DIR CLIENT ack KEY LEASE
 *   mailbox DIR CLIENT nack KEY LEASE REASON
 *   mailbox DIR CLIENT request COMMAND PAYLOAD        prints the whole answer
 *
 * DIR is the mailbox of the manager, MESSAGE and PAYLOAD are JSON. Ends with 0 if the request was done, 1 if there was
 * no message, 2 if the request was refused (the reason is on standard error), 3 if there was no answer.
 *
 * A request is written under a name that ends in .tmp and renamed, so that the manager never sees half of it. The name
 * of the answer is that of the request. A request that got no answer may be sent again with the same requestId: its
 * effect happens once. docs/reference/mailbox.md describes the protocol.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <poll.h>
#include <sys/inotify.h>
#endif

enum { DONE = 0, NOTHING = 1, REFUSED = 2, NO_ANSWER = 3 };

#define WAIT_MS 30000       /* for the answer, beyond the time that the request itself may wait */
#define LONGEST_SLEEP_MS 50 /* where the kernel cannot wake us */

static void die(const char *what) {
    fprintf(stderr, "mailbox: %s: %s\n", what, strerror(errno));
    exit(NO_ANSWER);
}

static long long now_ms(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- JSON: what a client needs to write and to find ---- */

/* Return a text as a JSON string, with its quotes. */
static char *quoted(const char *text) {
    char *out = malloc(6 * strlen(text) + 3), *to = out;
    if (!out) die("memory");
    *to++ = '"';
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            *to++ = '\\', *to++ = (char)*c;
        else if (*c < 0x20)
            to += sprintf(to, "\\u%04x", *c);
        else
            *to++ = (char)*c;
    }
    *to++ = '"';
    *to = 0;
    return out;
}

/* Return the end of the JSON value that begins here. */
static const char *value_end(const char *at) {
    int depth = 0;
    for (; *at; at++) {
        if (*at == '"') {
            for (at++; *at && *at != '"'; at++)
                if (*at == '\\' && at[1]) at++;
            if (!*at) return at;
        } else if (*at == '{' || *at == '[') {
            depth++;
            continue;
        } else if (*at == '}' || *at == ']') {
            if (depth-- == 0) return at;
        } else if (*at == ',' && depth == 0) {
            return at;
        } else {
            continue;
        }
        if (depth == 0) return at + 1;
    }
    return at;
}

/* Return where the value of a field of the object that begins here is; NULL if it has none. */
static const char *field(const char *object, const char *name) {
    size_t length = strlen(name);
    if (!object) return NULL;
    while (*object == ' ' || *object == '\n') object++;
    if (*object != '{') return NULL;
    for (const char *at = object + 1; *at && *at != '}';) {
        while (*at == ' ' || *at == '\n' || *at == ',') at++;
        if (*at != '"') return NULL;
        const char *key = at + 1;
        at = value_end(at);
        int found = (size_t)(at - 1 - key) == length && memcmp(key, name, length) == 0;
        while (*at == ' ' || *at == ':' || *at == '\n') at++;
        if (found) return at;
        at = value_end(at);
    }
    return NULL;
}

/* Print a value on a line of its own; a string without its quotes. Keys and leases need no unescaping. */
static void print_value(FILE *to, const char *value) {
    const char *end = value_end(value);
    if (*value == '"') value++, end--;
    fprintf(to, "%.*s\n", (int)(end - value), value);
}

/* ---- requests and answers ---- */

struct mailbox {
    const char *dir, *client;
    char requests[104], responses[104]; /* the names of its folders */
};

static char *path_of(const char *dir, const char *folder, const char *client, const char *name, const char *suffix) {
    size_t size = strlen(dir) + strlen(folder) + strlen(client) + strlen(name) + strlen(suffix) + 8;
    char *path = malloc(size);
    if (!path) die("memory");
    if (*client)
        snprintf(path, size, "%s/%s/%s/%s%s", dir, folder, client, name, suffix);
    else
        snprintf(path, size, "%s/%s/%s%s", dir, folder, name, suffix);
    return path;
}

static void send_request(const struct mailbox *box, const char *id, const char *text) {
    char *draft = path_of(box->dir, box->requests, "", id, ".json.tmp");
    char *final = path_of(box->dir, box->requests, "", id, ".json");
    int fd = open(draft, O_WRONLY | O_CREAT | O_EXCL, 0640);
    if (fd < 0) die(draft);
    for (size_t left = strlen(text); left;) {
        ssize_t written = write(fd, text, left);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) die(draft);
        text += written;
        left -= (size_t)written;
    }
    if (close(fd) || rename(draft, final)) die(final);
    free(draft);
    free(final);
}

static char *read_file(const char *path) {
    struct stat facts;
    int fd = open(path, O_RDONLY);
    if (fd < 0) return NULL;
    if (fstat(fd, &facts)) die(path);
    char *data = malloc((size_t)facts.st_size + 1);
    size_t have = 0;
    if (!data) die("memory");
    while (have < (size_t)facts.st_size) {
        ssize_t got = read(fd, data + have, (size_t)facts.st_size - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) die(path);
        have += (size_t)got;
    }
    close(fd);
    data[have] = 0;
    return data;
}

static void read_name(char *name, size_t size, const char *layout, const char *key, const char *usual) {
    const char *value = field(layout, key), *end = value ? value_end(value) : NULL;
    if (value && *value == '"')
        snprintf(name, size, "%.*s", (int)(end - value - 2), value + 1);
    else
        snprintf(name, size, "%s", usual);
}

/* Read mailbox.json, in which the manager says how its folders are called. */
static void read_layout(struct mailbox *box) {
    char *path = path_of(box->dir, ".", "", "mailbox", ".json"), *layout = read_file(path);
    read_name(box->requests, sizeof box->requests, layout, "requestsDir", "requests");
    read_name(box->responses, sizeof box->responses, layout, "responsesDir", "responses");
    free(layout);
    free(path);
}

/* Sleep until something may have changed in a folder. */
static void sleep_until_changed(int watch, long long ms) {
#ifdef __linux__
    if (watch >= 0) {
        char events[4096];
        struct pollfd ready = {watch, POLLIN, 0};
        if (poll(&ready, 1, (int)(ms < 1000 ? ms : 1000)) > 0 && read(watch, events, sizeof events) < 0 && errno != EAGAIN)
            die("inotify");
        return;
    }
#endif
    long part = ms < LONGEST_SLEEP_MS ? (long)ms : LONGEST_SLEEP_MS;
    struct timespec pause = {0, part * 1000000L};
    nanosleep(&pause, NULL);
}

/* Return the answer of a request. The manager renames it into its place, so it is always whole. */
static char *wait_for_answer(const struct mailbox *box, const char *id, long long ms) {
    char *path = path_of(box->dir, box->responses, box->client, id, ".json");
    char *folder = path_of(box->dir, box->responses, "", box->client, "");
    long long end = now_ms(CLOCK_MONOTONIC) + ms;
    int watch = -1;
    char *answer;
    while (!(answer = read_file(path))) {
        if (now_ms(CLOCK_MONOTONIC) >= end) {
            fprintf(stderr, "mailbox: no answer in %lld ms: does a manager serve %s?\n", ms, box->dir);
            exit(NO_ANSWER);
        }
#ifdef __linux__
        if (watch < 0) { /* the folder is made with the first answer; look again after the watch stands */
            watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
            if (watch >= 0 && inotify_add_watch(watch, folder, IN_MOVED_TO) >= 0) continue;
            if (watch >= 0) close(watch);
            watch = -1;
        }
#endif
        sleep_until_changed(watch, end - now_ms(CLOCK_MONOTONIC));
    }
    if (watch >= 0) close(watch);
    unlink(path);
    free(path);
    free(folder);
    return answer;
}

/* Send a command and return the answer. The payload is the text of a JSON object. */
static char *ask(const struct mailbox *box, const char *command, const char *payload, long long ms) {
    char id[96];
    snprintf(id, sizeof id, "%.40s-%lld-%ld", box->client, now_ms(CLOCK_REALTIME), (long)getpid());
    char *client = quoted(box->client), *verb = quoted(command);
    size_t size = strlen(payload) + strlen(client) + strlen(verb) + sizeof id + 96;
    char *text = malloc(size);
    if (!text) die("memory");
    snprintf(text, size, "{\"requestId\": \"%s\", \"clientId\": %s, \"command\": %s, \"payload\": %s}", id, client, verb,
             payload);
    send_request(box, id, text);
    free(text);
    free(client);
    free(verb);
    return wait_for_answer(box, id, ms);
}

/* Return the data of an answer; end with REFUSED and its reason if it is a refusal. */
static const char *data_of(const char *answer) {
    const char *ok = field(answer, "ok"), *error = field(answer, "error");
    if (ok && strncmp(ok, "true", 4) == 0) return field(answer, "data");
    fprintf(stderr, "mailbox: ");
    print_value(stderr, error ? error : answer);
    exit(REFUSED);
}

static char *payload_of(const char *form, const char *a, const char *b, const char *c) {
    size_t size = strlen(form) + strlen(a) + strlen(b) + strlen(c) + 1;
    char *text = malloc(size);
    if (!text) die("memory");
    snprintf(text, size, form, a, b, c);
    return text;
}

static int usage(void) {
    fprintf(stderr, "usage: mailbox DIR CLIENT publish QUEUE MESSAGE | consume QUEUE [WAIT_MS] | ack KEY LEASE |\n"
                    "       nack KEY LEASE REASON | request COMMAND PAYLOAD\n");
    return REFUSED;
}

int main(int count, char **words) {
    if (count < 5) return usage();
    struct mailbox box = {words[1], words[2], "", ""};
    read_layout(&box);
    const char *verb = words[3];
    if (strcmp(verb, "publish") == 0 && count == 6) {
        char *payload = payload_of("{\"queue\": %s, \"message\": %s}%s", quoted(words[4]), words[5], "");
        print_value(stdout, field(data_of(ask(&box, "publish", payload, WAIT_MS)), "messageKey"));
    } else if (strcmp(verb, "consume") == 0 && (count == 5 || count == 6)) {
        char wait[24];
        snprintf(wait, sizeof wait, "%ld", count == 6 ? strtol(words[5], NULL, 10) : 0L);
        char *payload = payload_of("{\"queue\": %s, \"waitMs\": %s}%s", quoted(words[4]), wait, "");
        const char *data = data_of(ask(&box, "consume", payload, WAIT_MS + strtol(wait, NULL, 10)));
        const char *message = field(data, "message");
        if (!message || *message != '{') return NOTHING;
        print_value(stdout, field(message, "messageKey"));
        print_value(stdout, field(field(data, "lease"), "leaseId"));
        const char *payload_at = field(message, "payload");
        printf("%.*s\n", (int)(value_end(payload_at) - payload_at), payload_at);
    } else if (strcmp(verb, "ack") == 0 && count == 6) {
        data_of(ask(&box, "ack", payload_of("{\"messageKey\": %s, \"leaseId\": %s}%s", quoted(words[4]), quoted(words[5]), ""),
                    WAIT_MS));
    } else if (strcmp(verb, "nack") == 0 && count == 7) {
        data_of(ask(&box, "nack",
                    payload_of("{\"messageKey\": %s, \"leaseId\": %s, \"requeue\": true, \"reason\": %s}", quoted(words[4]),
                               quoted(words[5]), quoted(words[6])),
                    WAIT_MS));
    } else if (strcmp(verb, "request") == 0 && count == 6) {
        char *answer = ask(&box, words[4], words[5], WAIT_MS);
        printf("%s\n", answer);
        data_of(answer);
    } else {
        return usage();
    }
    return DONE;
}
