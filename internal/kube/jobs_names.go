package kube

import (
	"net"
	"strconv"

	"tidemill.dev/internal/runs"
)

// The names follow from the attempt's, so that whoever launches it once more
// finds what is there. A Job's name may begin with a digit, as a run's id does; a
// Service's may not.

func serversName(attempt string) string { return attempt + "-servers" }

func serviceName(attempt string) string { return "run-" + attempt }

func volumeName(i int) string { return "volume-" + strconv.Itoa(i) }

// meetAt is where each container of an attempt listens: MASTER_PORT of the first.
const meetAt = 29500

// workers are the addresses of an attempt's workers, by their ranks.
func workers(a runs.Attempt) []string {
	return addresses(a.Name, serviceName(a.Name), max(a.Plan.Workers, 1))
}

// servers are those of its parameter servers.
func servers(a runs.Attempt) []string {
	if a.Plan.Servers == nil {
		return nil
	}
	return addresses(serversName(a.Name), serviceName(a.Name), a.Plan.Servers.Count)
}

// addresses are the names that the pods of an Indexed Job have by their Service.
// They are short, so that the first of a resolver's search domains finds them.
func addresses(job, service string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = net.JoinHostPort(job+"-"+strconv.Itoa(i)+"."+service, strconv.Itoa(meetAt))
	}
	return all
}
