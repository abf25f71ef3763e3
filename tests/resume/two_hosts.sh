#!/usr/bin/env bash
# Two hosts on this machine: network namespaces NAME_a (10.77.0.1) and NAME_b (10.77.0.2) with a wire between them.
#
#   two_hosts.sh up NAME                 make them; status 77 if this machine does not allow it
#   two_hosts.sh on NAME a|b COMMAND...  run a command on one of them
#   two_hosts.sh cut|mend NAME           unplug the wire, plug it in again
#   two_hosts.sh down NAME               remove them
set -euo pipefail

action=$1 name=$2
shift 2
case $action in
up)
    command -v ip >/dev/null || { echo "no command ip; on Debian: apt-get install iproute2" >&2; exit 77; }
    trap '"$0" down "$name"' ERR
    if ! { ip netns add "${name}_a" && ip netns add "${name}_b" &&
        ip link add wire netns "${name}_a" type veth peer name wire netns "${name}_b"; }; then
        "$0" down "$name"
        exit 77
    fi
    host=1
    for side in a b; do
        ip -n "${name}_$side" address add "10.77.0.$((host++))/24" dev wire
        ip -n "${name}_$side" link set lo up
        ip -n "${name}_$side" link set wire up
    done
    ;;
on)
    side=$1
    shift
    # gloo would otherwise listen where the name of this machine points to
    GLOO_SOCKET_IFNAME=wire exec ip netns exec "${name}_$side" "$@"
    ;;
cut) ip -n "${name}_a" link set wire down ;;
mend) ip -n "${name}_a" link set wire up ;;
down) for side in a b; do ip netns delete "${name}_$side" 2>/dev/null || true; done ;;
*) echo "two_hosts.sh: no action $action" >&2; exit 2 ;;
esac
