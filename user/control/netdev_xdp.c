// SPDX-License-Identifier: BSD-2-Clause
#include "control/netdev_xdp.h"

#include <errno.h>
#include <linux/genetlink.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <string.h>

/* linux/netdev.h */
#define NETDEV_CMD_DEV_GET 1
#define NETDEV_A_DEV_IFINDEX 1
#define NETDEV_A_DEV_XDP_FEATURES 3
#define NETDEV_A_DEV_XSK_FEATURES 6

struct answer {
	int wanted; /* attribute */
	size_t size;
	void *value;
	int code; /* -ENODATA until it came */
};

static int on_answer(struct nl_msg *message, void *context)
{
	struct answer *answer = context;
	struct nlattr *attribute;

	attribute = nlmsg_find_attr(nlmsg_hdr(message), GENL_HDRLEN, answer->wanted);
	if (attribute && nla_len(attribute) >= (int)answer->size) {
		memcpy(answer->value, nla_data(attribute), answer->size);
		answer->code = 0;
	}
	return NL_OK;
}

static int on_error(struct sockaddr_nl *from, struct nlmsgerr *error, void *context)
{
	((struct answer *)context)->code = error->error;
	return NL_STOP;
}

/* Sends @message (freed) and takes one attribute of what comes back. */
static int ask(struct nl_sock *socket, struct nl_msg *message, struct answer *answer)
{
	struct nl_cb *callbacks = nl_cb_alloc(NL_CB_DEFAULT);
	int code = callbacks ? nl_send_auto(socket, message) : -1;

	answer->code = -ENODATA;
	nlmsg_free(message);
	if (code >= 0) {
		nl_cb_set(callbacks, NL_CB_VALID, NL_CB_CUSTOM, on_answer, answer);
		nl_cb_err(callbacks, NL_CB_CUSTOM, on_error, answer);
		code = nl_recvmsgs(socket, callbacks);
	}
	if (callbacks)
		nl_cb_put(callbacks);
	return answer->code ? answer->code : code < 0 ? -EIO : 0;
}

static struct nl_msg *request(int family, uint8_t command)
{
	const struct genlmsghdr header = { .cmd = command, .version = 1 };
	struct nl_msg *message = nlmsg_alloc_simple(family, NLM_F_REQUEST);

	if (message && nlmsg_append(message, (void *)&header, sizeof(header), NLMSG_ALIGNTO) < 0) {
		nlmsg_free(message);
		return NULL;
	}
	return message;
}

static int ask_device(struct nl_sock *socket, unsigned ifindex, int attribute, uint64_t *value)
{
	uint16_t family = 0;
	struct answer of_family = { CTRL_ATTR_FAMILY_ID, sizeof(family), &family, 0 };
	struct answer of_device = { attribute, sizeof(*value), value, 0 };
	struct nl_msg *message = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY);
	int code;

	if (!message)
		return -ENOMEM;
	nla_put_string(message, CTRL_ATTR_FAMILY_NAME, "netdev");
	code = ask(socket, message, &of_family);
	if (code)
		return code == -ENOENT ? -EOPNOTSUPP : code;
	message = request(family, NETDEV_CMD_DEV_GET);
	if (!message)
		return -ENOMEM;
	nla_put_u32(message, NETDEV_A_DEV_IFINDEX, ifindex);
	return ask(socket, message, &of_device);
}

static int device_attribute(unsigned ifindex, int attribute, uint64_t *value)
{
	struct nl_sock *socket = nl_socket_alloc();
	int code = -ENOMEM;

	if (!socket)
		return code;
	nl_socket_disable_auto_ack(socket); /* one answer a request */
	code = nl_connect(socket, NETLINK_GENERIC) < 0 ? -EIO : ask_device(socket, ifindex, attribute, value);
	nl_socket_free(socket);
	return code;
}

int netdev_xdp_features(unsigned ifindex, uint64_t *features)
{
	return device_attribute(ifindex, NETDEV_A_DEV_XDP_FEATURES, features);
}

int netdev_xsk_features(unsigned ifindex, uint64_t *features)
{
	return device_attribute(ifindex, NETDEV_A_DEV_XSK_FEATURES, features);
}
