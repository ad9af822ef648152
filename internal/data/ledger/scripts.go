package ledger

import (
	_ "embed" // the scripts

	"github.com/redis/go-redis/v9"
)

//go:embed scripts/trie.lua
var luaTrie string

//go:embed scripts/change.lua
var luaChange string

//go:embed scripts/links.lua
var luaLinks string

//go:embed scripts/apply.lua
var luaApply string

//go:embed scripts/ready.lua
var luaReady string

//go:embed scripts/forget.lua
var luaForget string

//go:embed scripts/claim.lua
var luaClaim string

//go:embed scripts/return.lua
var luaReturn string

//go:embed scripts/look.lua
var luaLook string

//go:embed scripts/page.lua
var luaPage string

// The scripts, which no one changes.
var (
	scriptApply  = redis.NewScript(luaTrie + luaChange + luaLinks + luaApply)
	scriptReady  = redis.NewScript(luaTrie + luaReady)
	scriptForget = redis.NewScript(luaTrie + luaForget)
	scriptClaim  = redis.NewScript(luaTrie + luaChange + luaClaim)
	scriptReturn = redis.NewScript(luaTrie + luaChange + luaReturn)
	scriptLook   = redis.NewScript(luaTrie + luaLook)
	scriptPage   = redis.NewScript(luaTrie + luaPage)
)
