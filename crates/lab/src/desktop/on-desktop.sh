#!/bin/sh
# Runs a program on the desktop.
. /usr/local/lib/frontdesk/environment
exec "$@"
