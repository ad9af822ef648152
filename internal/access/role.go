package access

// Role is a kind of act.
type Role string

// The roles. Whoever may approve may operate too, and whoever may operate may
// publish and read.
const (
	Publish Role = "publish" // events, from outside
	Read    Role = "read"    // streams, runs, models and their metrics
	Operate Role = "operate" // start, cancel and replay
	Approve Role = "approve" // promote, roll back and pin what serves
)

// covered is every role that this one stands for. One that is not known stands
// for nothing.
func (r Role) covered() []Role {
	switch r {
	case Approve:
		return []Role{Approve, Operate, Publish, Read}
	case Operate:
		return []Role{Operate, Publish, Read}
	case Publish, Read:
		return []Role{r}
	}
	return nil
}
