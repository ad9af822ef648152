package tidemill

func (p *Plan) readQuickly(q *reading) {
	q.object(func(name []byte) {
		if !readWork(q, p, name) && !readMaking(q, p, name) {
			q.giveUp()
		}
	})
}

// readWork reads what is run, and with what.
func readWork(q *reading, p *Plan, name []byte) bool {
	switch string(name) {
	case "team":
		p.Team = q.text()
	case "image":
		p.Image = q.text()
	case "dir":
		p.Dir = q.text()
	case "command":
		p.Command = listOf(q, p.Command, q.text)
	case "env":
		p.Env = mapOf(q, p.Env, q.text)
	case "secrets":
		p.Secrets = mapOf(q, p.Secrets, q.text)
	case "cpu":
		p.CPU = q.float()
	case "memory":
		p.Memory = q.int64()
	case "gpus":
		p.GPUs = q.int()
	case "pool":
		p.Pool = q.text()
	case "priority":
		p.Priority = q.int()
	case "workers":
		p.Workers = q.int()
	case "servers":
		q.any(&p.Servers)
	case "inside":
		q.any(&p.Inside)
	default:
		return false
	}
	return true
}

// readMaking reads how long and how often it is run, what it learns from and what
// it makes.
func readMaking(q *reading, p *Plan, name []byte) bool {
	switch string(name) {
	case "deadline":
		p.Deadline = q.duration()
	case "grace":
		p.Grace = q.duration()
	case "attempts":
		p.Attempts = q.int()
	case "backoff":
		readBackoff(q, &p.Backoff)
	case "inputs":
		p.Inputs = listOf(q, p.Inputs, func() Input { return readInput(q) })
	case "model":
		p.Model = q.text()
	case "judge":
		if p.Judge != nil {
			q.giveUp()
		}
		p.Judge = readJudge(q)
	case "champion":
		q.any(&p.Champion)
	case "dataset":
		p.Dataset = q.text()
	case "branch":
		p.Branch = q.text()
	case "maxOutput":
		p.MaxOutput = q.int64()
	case "maxLog":
		p.MaxLog = q.int64()
	default:
		return false
	}
	return true
}

func readBackoff(q *reading, b *Backoff) {
	q.object(func(name []byte) {
		switch string(name) {
		case "first":
			b.First = q.duration()
		case "cap":
			b.Cap = q.duration()
		default:
			q.giveUp()
		}
	})
}

func readInput(q *reading) (in Input) {
	q.object(func(name []byte) {
		switch string(name) {
		case "name":
			in.Name = q.text()
		case "dataset":
			in.Dataset = q.text()
		case "branch":
			in.Branch = q.text()
		case "commit":
			in.Commit = q.text()
		case "tree":
			in.Tree = q.text()
		case "files":
			in.Files = q.int()
		case "bytes":
			in.Bytes = q.int64()
		case "uri":
			in.URI = q.text()
		case "allow":
			in.Allow = listOf(q, in.Allow, q.text)
		default:
			q.giveUp()
		}
	})
	return in
}

func readJudge(q *reading) *Judge {
	j := &Judge{}
	q.object(func(name []byte) {
		switch string(name) {
		case "gate":
			j.Gate = listOf(q, j.Gate, q.text)
		case "on":
			j.On = GateOn(q.text())
		case "promote":
			j.Promote = Promote(q.text())
		case "keep":
			j.Keep = q.int()
		default:
			q.giveUp()
		}
	})
	return j
}

// rule is what of a plan decides what follows from an attempt's end.
type rule struct {
	Dataset  string  `json:"dataset"`
	Attempts int     `json:"attempts"`
	Backoff  Backoff `json:"backoff"`
}

// readQuickly passes over the rest. The fold has written it, so that no field has
// a name in other letters.
func (r *rule) readQuickly(q *reading) {
	q.object(func(name []byte) {
		switch string(name) {
		case "dataset":
			r.Dataset = q.text()
		case "attempts":
			r.Attempts = q.int()
		case "backoff":
			readBackoff(q, &r.Backoff)
		default:
			q.skip()
		}
	})
}
