// Package warmpods keeps the list of pods that have finished their run and wait for
// another, and assigns them to runs. The list is in Redis, so a launcher finds every
// waiting pod, independent of the gateway that the pod talks to. If Redis loses the
// list, only time is lost: waiting pods are listed again within a second. A run that was
// assigned to a pod and never reached it counts as lost, and gets another attempt.
package warmpods
