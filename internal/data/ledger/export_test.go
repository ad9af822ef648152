package ledger

// AtOnce bounds how many facts a ledger folds at once.
func (o Options) AtOnce(facts int) Options {
	o.atOnce = facts
	return o
}

// Far lets a ledger think so many facts many to catch up with, and bounds how many
// rows it keeps unwritten then.
func (o Options) Far(facts int64, rows int) Options {
	o.far, o.rows = facts, rows
	return o
}

// Layout is the version of what lies in Redis.
const Layout = layout
