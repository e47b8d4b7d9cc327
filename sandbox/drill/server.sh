#!/bin/sh
# A server that reads its requests from stdin, and stays when nobody can send any more.
while read -r line; do :; done
while :; do sleep 1; done
