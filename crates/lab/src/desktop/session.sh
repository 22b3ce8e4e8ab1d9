#!/bin/sh
# The session of a lab desktop. There is neither systemd nor udev: devices and sections of Xorg are static.
mkdir -p /run/dbus /run/user/0 /tmp/.X11-unix /dev/input
chmod 700 /run/user/0
chmod 1777 /tmp/.X11-unix /dev/shm
# The bus of the tablet may take its time.
tries=0
until [ -e /dev/input/tablet ] && [ -e /dev/input/keyboard ]; do
    for device in /sys/class/input/event*; do
        case $(cat "$device/device/name") in
        *[Tt]ablet*) ln -sf "${device##*/}" /dev/input/tablet ;;
        *[Vv]irtio*[Kk]eyboard*) ln -sf "${device##*/}" /dev/input/keyboard ;;
        esac
    done
    tries=$((tries + 1))
    if [ $tries -gt 300 ]; then
        echo "there is no tablet or no keyboard" >&2
        exit 1
    fi
    sleep 0.1
done
. /usr/local/lib/frontdesk/environment
dbus-uuidgen --ensure
dbus-daemon --system --fork
dbus-daemon --session --fork --address="$DBUS_SESSION_BUS_ADDRESS"
Xorg :0 -noreset -nolisten tcp -s 0 -dpms vt1 &
server=$!
until xset q > /dev/null 2>&1; do
    # Its own words say why.
    kill -0 $server || exit
    sleep 0.1
done
# A key whose release waits for a CPU is not held.
xset s off -dpms r off
xsetroot -solid '#334455'
# A window that comes while it starts may stay unmapped until something else happens.
rm -f /run/user/0/openbox
openbox --startup 'touch /run/user/0/openbox' &
pulseaudio --daemonize --exit-idle-time=-1 --disallow-exit -n --load='module-alsa-sink device=hw:0' \
    --load=module-suspend-on-idle --load=module-native-protocol-unix
until [ -e /run/user/0/openbox ]; do
    kill -0 $server || exit
    sleep 0.1
done
# Whoever types looks for these colours at this place.
while kill -0 $server; do
    xterm -geometry 80x12+4+604 -fn fixed -bg '#101418' -fg '#d0d0d0' -e sh
done
