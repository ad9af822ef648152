package agent

// The variables by which an agent in a pod is told what the launcher knows. None
// of them reaches the command.
const (
	EnvGateway = "TIDEMILL_AGENT_GATEWAY" // URL
	EnvAttempt = "TIDEMILL_AGENT_ATTEMPT" // its name
	EnvToken   = "TIDEMILL_AGENT_TOKEN"
	EnvNode    = "TIDEMILL_AGENT_NODE"
	EnvPod     = "TIDEMILL_AGENT_POD"
	EnvWork    = "TIDEMILL_AGENT_WORK"    // the folder of the attempt
	EnvGrace   = "TIDEMILL_AGENT_GRACE"   // a duration: what the pod has between SIGTERM and SIGKILL; empty is 30s
	EnvLinger  = "TIDEMILL_AGENT_LINGER"  // a duration, such as 60s; empty is not at all
	EnvPart    = "TIDEMILL_AGENT_PART"    // worker or server; empty is worker
	EnvIndex   = "TIDEMILL_AGENT_INDEX"   // of the worker or server; empty is 0
	EnvWorkers = "TIDEMILL_AGENT_WORKERS" // host:port of each, with commas; empty is this one alone
	EnvServers = "TIDEMILL_AGENT_SERVERS" // as well
)
