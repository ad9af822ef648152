package gateway

import "time"

// Limits bound what callers can take from the process. A zero is the default.
type Limits struct {
	Headers     int // bytes of a request's headers; 64 KiB
	Event       int // bytes of one event, its attributes counted; 1 MiB
	Batch       int // bytes of a batch's body; 16 MiB
	BatchEvents int // events of a batch; 10,000
	Connections int // open at once; 10,000

	UnderWay int64 // bytes of all requests being answered; 256 MiB
	Caller   int64 // of those, for one caller with a name; half
	Unacked  int64 // bytes of events that Kafka has yet to acknowledge; 48 MiB. Less than the producer's buffer

	ReadHeader time.Duration // until a request's headers are here; 10 s
	BodyGrace  time.Duration // until a body has to come at BodyRate; 10 s
	BodyRate   int           // bytes a second, on average; 16 KiB
	Room       time.Duration // an event may wait for room among the unacknowledged; 1 s
	Ack        time.Duration // and for its acknowledgement; 30 s
	Write      time.Duration // an answer may take to be taken; 10 s
	Idle       time.Duration // a connection may be silent between requests; 2 minutes

	Runs int // that one request starts, cancels or retries; 50,000

	Look      time.Duration // Kafka may take to say how streams are; 5 s
	Soon      time.Duration // and whoever knows what an answer can do without; 1 s
	Sight     time.Duration // a node may take to tell of a container that has begun, and a controller to say so; 2 s
	Tails     int           // open at once; 64
	OwnTails  int           // of those, of one caller with a name; half
	Keepalive time.Duration // a tail is silent for no longer; 15 s

	DrainDelay time.Duration // Close goes on answering; none
}

// headerSlack is how far beyond Headers net/http itself refuses them, without a
// problem. It is small: headers of four bytes take thirty times as much in
// memory, before anybody knows who sends them.
const headerSlack = 32 << 10

// http2Streams are the requests at once on one HTTP/2 connection.
const http2Streams = 100

func (l Limits) withDefaults() Limits {
	setDefault(&l.Headers, 64<<10)
	setDefault(&l.Event, 1<<20)
	setDefault(&l.Batch, 16<<20)
	setDefault(&l.BatchEvents, 10_000)
	setDefault(&l.Connections, 10_000)
	setDefault(&l.UnderWay, 256<<20)
	setDefault(&l.Caller, l.UnderWay/2)
	setDefault(&l.Unacked, 48<<20)
	setDefault(&l.ReadHeader, 10*time.Second)
	setDefault(&l.BodyGrace, 10*time.Second)
	setDefault(&l.BodyRate, 16<<10)
	setDefault(&l.Room, time.Second)
	setDefault(&l.Ack, 30*time.Second)
	setDefault(&l.Write, 10*time.Second)
	setDefault(&l.Idle, 2*time.Minute)
	setDefault(&l.Runs, 50_000)
	setDefault(&l.Look, 5*time.Second)
	setDefault(&l.Soon, time.Second)
	setDefault(&l.Sight, 2*time.Second)
	setDefault(&l.Tails, 64)
	setDefault(&l.OwnTails, (l.Tails+1)/2)
	setDefault(&l.Keepalive, 15*time.Second)
	return l
}

func setDefault[T int | int64 | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// structured is how long the JSON of an event may be that Event allows: data in
// base64 is longer by a third. The event itself is measured once it is read.
func (l *Limits) structured() int { return l.Event/3*4 + 64<<10 }

// answer is how long a request may take once its body is here.
func (l *Limits) answer() time.Duration { return l.Room + l.Ack + l.Write }

// soon is how long a look waits for what it can do without.
func (l *Limits) soon() time.Duration { return min(l.Soon, l.Look) }

// body is when so many bytes of a body have to be here.
func (l *Limits) body(began time.Time, bytes int) time.Time {
	return began.Add(l.BodyGrace + time.Duration(bytes)*time.Second/time.Duration(l.BodyRate))
}
