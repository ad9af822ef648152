// Package warmpods keeps the list of pods that have finished their run and wait for another run,
// and assigns these pods to runs. The list is in Redis, so a launcher finds every waiting pod,
// independent of the gateway to which the pod is connected. If Redis loses the list, waiting pods
// are listed again within a second. If an assigned attempt never reaches its pod, it counts as
// lost, and the run gets another attempt.
package warmpods
