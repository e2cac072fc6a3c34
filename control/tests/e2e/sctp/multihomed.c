/*
 * Multihomed SCTP endpoints for the end-to-end tests: usrsctp with its own IPv4 sockets. peer.c gives usrsctp one
 * address on each side; here an association has all addresses of its endpoint. mod.rs compiles and runs it.
 *
 *   multihomed serve NAME PORT[,PORT] ADDRESS[,ADDRESS]...
 *                    accepts associations; each list of addresses is an endpoint. Returns every message with NAME and a
 *                    space in front, and prints "NAME messages=COUNT END" when an association has ended
 *   multihomed client ADDRESS[,ADDRESS] VIP PORT MESSAGES
 *                    prints "initialised", waits for SIGUSR1, and sends MESSAGES messages on one association (fewer if it
 *                    gets SIGTERM), compares the replies, and shuts it down. Prints "NAME N" after message N, and
 *                    finally "shut down"
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <usrsctp.h>

enum { MESSAGE_MAX = 4000, NAME_MAX_LENGTH = 64, ADDRESSES_MAX = 8, PAUSE_MS = 20, SECONDS_MAX = 120 };

static const char *server_name;
static volatile sig_atomic_t may_begin, is_enough;

static void die(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

static struct sockaddr_in address_of(const char *text, uint16_t port)
{
	struct sockaddr_in address;
	memset(&address, 0, sizeof address);
	address.sin_family = AF_INET;
	address.sin_port = htons(port);
	if (inet_pton(AF_INET, text, &address.sin_addr) != 1)
		die("no IPv4 address: %s", text);
	return address;
}

/* A socket that is bound to each address of a comma-separated list. */
static struct socket *bound_to(const char *list, uint16_t port)
{
	struct sockaddr_in addresses[ADDRESSES_MAX];
	char text[256], *rest = NULL;
	int count = 0, on = 1;
	struct socket *socket = usrsctp_socket(AF_INET, SOCK_STREAM, IPPROTO_SCTP, NULL, NULL, 0, NULL);

	if (!socket)
		die("a socket: %m");
	snprintf(text, sizeof text, "%s", list);
	for (char *one = strtok_r(text, ",", &rest); one && count < ADDRESSES_MAX; one = strtok_r(NULL, ",", &rest))
		addresses[count++] = address_of(one, port);
	/* One call for each address: in a call for several, the stack chooses the port only for the first. */
	for (int n = 0; n < count; n++) {
		if (n > 0 && port == 0) {
			struct sockaddr *own = NULL;
			if (usrsctp_getladdrs(socket, 0, &own) < 1)
				die("the port: %m");
			addresses[n].sin_port = ((struct sockaddr_in *)own)->sin_port;
			usrsctp_freeladdrs(own);
		}
		if (usrsctp_bindx(socket, (struct sockaddr *)&addresses[n], 1, SCTP_BINDX_ADD_ADDR) < 0)
			die("bind to address %d of %s: %m", n + 1, list);
	}
	struct sctp_event event = {.se_assoc_id = SCTP_FUTURE_ASSOC, .se_type = SCTP_ASSOC_CHANGE, .se_on = 1};
	struct sctp_paddrparams paths;
	memset(&paths, 0, sizeof paths);
	paths.spp_address.ss_family = AF_INET;
	paths.spp_flags = SPP_HB_ENABLE;
	paths.spp_hbinterval = 500;
	paths.spp_pathmaxrxt = 2;
	if (usrsctp_setsockopt(socket, IPPROTO_SCTP, SCTP_EVENT, &event, sizeof event) < 0 ||
	    usrsctp_setsockopt(socket, IPPROTO_SCTP, SCTP_NODELAY, &on, sizeof on) < 0 ||
	    usrsctp_setsockopt(socket, IPPROTO_SCTP, SCTP_PEER_ADDR_PARAMS, &paths, sizeof paths) < 0)
		die("socket options: %m");
	return socket;
}

/* Receives one message. Returns its length, 0 at the end of the association, -1 after an error. */
static ssize_t receive_message(struct socket *socket, char *message, size_t size, int *state)
{
	size_t have = 0;
	for (;;) {
		struct sockaddr_in from;
		struct sctp_rcvinfo info;
		socklen_t from_size = sizeof from, info_size = sizeof info;
		unsigned int kind = 0;
		int flags = 0;
		ssize_t part = usrsctp_recvv(socket, message + have, size - have, (struct sockaddr *)&from, &from_size,
					     &info, &info_size, &kind, &flags);
		if (part <= 0)
			return part;
		if (flags & MSG_NOTIFICATION) {
			const union sctp_notification *notification = (const union sctp_notification *)(message + have);
			if (notification->sn_header.sn_type == SCTP_ASSOC_CHANGE)
				*state = notification->sn_assoc_change.sac_state;
			if (*state == SCTP_SHUTDOWN_COMP || *state == SCTP_COMM_LOST || *state == SCTP_CANT_STR_ASSOC)
				return 0;
			continue;
		}
		have += (size_t)part;
		if (flags & MSG_EOR)
			return (ssize_t)have;
		if (have == size)
			return -1;
	}
}

static void send_message(struct socket *socket, const char *message, size_t length)
{
	if (usrsctp_sendv(socket, message, length, NULL, 0, NULL, 0, SCTP_SENDV_NOINFO, 0) < 0)
		die("send: %m");
}

static void start(void *(*routine)(void *), void *argument)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, routine, argument) != 0)
		die("no thread");
	pthread_detach(thread);
}

static void *serve_association(void *argument)
{
	struct socket *socket = argument;
	char *message = malloc(NAME_MAX_LENGTH + MESSAGE_MAX);
	size_t prefix = strlen(server_name) + 1;
	int state = 0, messages = 0;
	ssize_t length;

	memcpy(message, server_name, prefix - 1);
	message[prefix - 1] = ' ';
	while ((length = receive_message(socket, message + prefix, MESSAGE_MAX, &state)) > 0) {
		messages++;
		if (usrsctp_sendv(socket, message, prefix + (size_t)length, NULL, 0, NULL, 0, SCTP_SENDV_NOINFO, 0) < 0)
			break;
	}
	printf("%s messages=%d %s\n", server_name, messages,
	       state == SCTP_COMM_LOST || length < 0 ? "lost" : "shut down");
	fflush(stdout);
	usrsctp_close(socket);
	free(message);
	return NULL;
}

static void *accept_all(void *argument)
{
	for (;;) {
		struct socket *accepted = usrsctp_accept(argument, NULL, NULL);
		if (!accepted)
			die("accept: %m");
		start(serve_association, accepted);
	}
	return NULL;
}

static int serve(int count, char **arguments)
{
	char *rest = NULL;
	server_name = arguments[0];
	if (strlen(server_name) >= NAME_MAX_LENGTH)
		die("the name is too long");
	for (char *port = strtok_r(arguments[1], ",", &rest); port; port = strtok_r(NULL, ",", &rest)) {
		for (int n = 2; n < count; n++) {
			struct socket *listener = bound_to(arguments[n], (uint16_t)atoi(port));
			if (usrsctp_listen(listener, 16) < 0)
				die("listen: %m");
			start(accept_all, listener);
		}
	}
	printf("ready\n");
	fflush(stdout);
	for (;;)
		pause();
	return 0;
}

static void begin(int signal)
{
	(void)signal;
	may_begin = 1;
}

static void enough(int signal)
{
	(void)signal;
	is_enough = 1;
}

static int run_client(char **arguments)
{
	static char sent[MESSAGE_MAX], received[NAME_MAX_LENGTH + MESSAGE_MAX];
	struct sockaddr_in vip = address_of(arguments[1], (uint16_t)atoi(arguments[2]));
	int messages = atoi(arguments[3]), state = 0;

	alarm(SECONDS_MAX);
	signal(SIGTERM, enough);
	/* usrsctp answers packets of other programs with ABORT until this is disabled after its start. So associations begin when
	   all programs of the namespace have come this far. */
	signal(SIGUSR1, begin);
	printf("initialised\n");
	fflush(stdout);
	while (!may_begin)
		usleep(1000);
	struct socket *socket = bound_to(arguments[0], 0);
	if (usrsctp_connect(socket, (struct sockaddr *)&vip, sizeof vip) < 0)
		die("connect: %m");
	for (int n = 0; n < messages && !is_enough; n++) {
		size_t length = 1 + (size_t)(n * 733) % (MESSAGE_MAX - 1);
		for (size_t at = 0; at < length; at++)
			sent[at] = (char)(at * 31 + (size_t)n * 17 + at / 251);
		send_message(socket, sent, length);
		ssize_t back = receive_message(socket, received, sizeof received, &state);
		char *space = back > 0 ? memchr(received, ' ', (size_t)back) : NULL;
		size_t prefix = space ? (size_t)(space + 1 - received) : 0;
		if (!space || (size_t)back != prefix + length || memcmp(received + prefix, sent, length) != 0)
			die("message %d: %zu bytes sent, %zd came back, state %d", n, length, back, state);
		printf("%.*s %d\n", (int)prefix - 1, received, n + 1);
		fflush(stdout);
		usleep(PAUSE_MS * 1000);
	}
	if (usrsctp_shutdown(socket, SHUT_WR) < 0)
		die("shutdown: %m");
	while (receive_message(socket, received, sizeof received, &state) > 0)
		;
	if (state != SCTP_SHUTDOWN_COMP)
		die("not shut down but in state %d", state);
	printf("shut down\n");
	fflush(stdout);
	usrsctp_close(socket);
	return 0;
}

int main(int count, char **arguments)
{
	usrsctp_init(0, NULL, NULL);
	usrsctp_sysctl_set_sctp_ecn_enable(0);
	usrsctp_sysctl_set_sctp_blackhole(2);
	/* A failed path is found soon. The network has no latency. */
	usrsctp_sysctl_set_sctp_rto_min_default(100);
	usrsctp_sysctl_set_sctp_rto_initial_default(200);
	usrsctp_sysctl_set_sctp_rto_max_default(500);
	/* The side that is cut off first gives up the association after this many losses. Before, the other side must have tried
	   another path, which takes longer on a busy machine. */
	usrsctp_sysctl_set_sctp_assoc_rtx_max_default(60);
	if (count >= 5 && strcmp(arguments[1], "serve") == 0)
		return serve(count - 2, arguments + 2);
	if (count == 6 && strcmp(arguments[1], "client") == 0)
		return run_client(arguments + 2);
	die("usage: multihomed serve NAME PORT[,PORT] ADDRESSES... | multihomed client ADDRESSES VIP PORT MESSAGES");
	return 1;
}
