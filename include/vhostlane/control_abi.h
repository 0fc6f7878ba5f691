/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The control socket's language: JSON-RPC 2.0 requests, one JSON object a line, over a Unix stream socket. Names of
 * methods are listed here; parameters and results are described in vhostlane(8), CONTROL SOCKET.
 */
#ifndef VHOSTLANE_CONTROL_ABI_H
#define VHOSTLANE_CONTROL_ABI_H

#define CONTROL_STATUS "status"		  /* {} -> object */
#define CONTROL_PORT_LIST "port.list"	  /* {} -> array of ports */
#define CONTROL_PORT_SHOW "port.show"	  /* {name} -> port with rings, session, counters */
#define CONTROL_PORT_ADD "port.add"	  /* {name, socket, group, role, mac, vlan, queues, busy-poll-us, node, mtu, offloads, uplink} (strings or whole numbers) -> port */
#define CONTROL_PORT_DEL "port.del"	  /* {name} -> {} */
#define CONTROL_PORT_SET "port.set"	  /* {name, KEY: value ...} -> port */
#define CONTROL_QUEUE_LIST "queue.list"	  /* {} -> array of queue pairs */
#define CONTROL_QUEUE_SET "queue.set"	  /* {port, pair, cpu (number or auto) and/or busy-poll-us} -> queue pair */
#define CONTROL_WORKER_LIST "worker.list" /* {} -> array */
#define CONTROL_WORKER_SET "worker.set"	  /* {policy and/or per-port and/or pin} -> status; queue pairs move at once, without loss */
#define CONTROL_UPLINK_LIST "uplink.list" /* {} -> array */
#define CONTROL_COUNTERS "counters"	  /* {drops: bool} -> {ports: {NAME: {counter: n}}, workers: {..}, uplinks: {..}} */

/* JSON-RPC error codes beside the standard ones: the call was understood and refused; data.errno names why. */
#define CONTROL_ERROR_REFUSED (-32000)
#define CONTROL_LINE_MAX (1024 * 1024) /* bytes of one request line */

#endif
