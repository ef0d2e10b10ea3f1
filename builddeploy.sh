#!/bin/sh
# Builds kai, imports its image into k3s and installs it. The script deploy/k3s has the options.
exec "$(dirname "$0")/deploy/k3s" "$@"
