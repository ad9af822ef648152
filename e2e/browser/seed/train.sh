# A training that takes ten minutes and nearly no processor time. Its curve has a bend.
set -eu
trap 'exit 1' TERM
step=0
while [ "$step" -lt 300 ]; do
	step=$((step + 1))
	echo "epoch $step of 300 for $TIDEMILL_KEY"
	awk -v s="$step" 'BEGIN { printf "{\"step\": %d, \"total\": 300, \"loss\": %.4f, \"accuracy\": %.4f}\n", s, 0.2 + 2 / (s + 1), 0.95 - 0.6 / (s / 10 + 1) }' >>"$TIDEMILL_OUT/metrics.jsonl"
	sleep 2
done
echo '{"accuracy": 0.93}' >"$TIDEMILL_OUT/metrics.json"
