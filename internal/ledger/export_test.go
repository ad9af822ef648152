package ledger

// AtOnce bounds how many facts a ledger folds at once.
func (o Options) AtOnce(facts int) Options {
	o.atOnce = facts
	return o
}

// Layout is the version of what lies in Redis.
const Layout = layout
