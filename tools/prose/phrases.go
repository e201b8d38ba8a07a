package prose

import (
	"regexp"
	"strings"
)

// A phrase is wording that plain technical English avoids.
type phrase struct {
	match   *regexp.Regexp
	instead string         // what to write
	except  *regexp.Regexp // matches to accept, nil for none
}

// phrases are the rules for comments and string literals of Go files.
var phrases = []phrase{
	// The actor is missing.
	// The two texts accepted are in the API and on the dashboard.
	{words(`(user )?\bnobody\b( could see it| measured it)?`), `"no" with the actor: "no client", "no process"`, words(`^user|see it$|measured it$`)},
	{words(`\b(somebody|whoever|whomever)\b`), `the actor: "another user", "the client that"`, nil},
	{words(`\b(of|for|to|by|with|from|than|as|on|in) who\b`), `the actor: "for a client that"`, nil},
	{words(`(^|[.;:] )who (has|have|asks?|wants?|waits?|sees?|is|are|was|holds?|comes?|came|may|can|goes|went|sends?|reads?|runs?|looks?|knows?|makes?|made|does|did|will|would|never|only)\b`), `the actor: "a client that"`, nil},
	{words(`\b(he|his|him|she)\b`), `"it" or "its"`, nil},
	{words(`\b(is|are|was|were|be|been) told\b`), `"receives", "is reported" or "is logged", with the actor`, nil},
	{words(`\b(tells?|telling|told) (of|whether|who|which|what|how)\b`), `"reports" or "shows"`, nil},
	{words(`\b(is|are|was|were|be|been|not) asked\b`), `"requests" or "is requested", with the actor`, nil},
	// A clause stands for a noun.
	{words(`(^|[.] )(?-i:What) [^?]*?[.;,]`), `a noun first: "Data that ..."`, nil},
	{words(`\b(is|are|was|were) (who|whose)\b`), `a noun: "is the client that"`, nil},
	{words(`\b(of|than) those of\b`), `the noun again`, nil},
	// Words and order from another language.
	{words(`(there )?\b(is|are|was|were|be) no [a-z]+`), `"is not a"`, words(`^there|no (longer|more|less|later|earlier|smaller|larger|greater|higher|lower|newer|older|wider|faster)$`)},
	{words(`\b(is|are|was|were) not there\b`), `"is missing" or "does not exist"`, nil},
	{words(`\b(that|what|who|which) (is|are|was|were) there\b|\bthat there (is|are|was|were)\b`), `"existing" or "exists"`, nil},
	{words(`\bwhere (there (is|are|was|were)|it (has|had|can|cannot|fails)|one is|none|that (is|was|fails|ends|cannot))\b`), `"if"`, nil},
	{words(`\banew\b`), `"again"`, nil},
	{words(`\ball the same\b`), `"anyway"`, nil},
	{words(`\b(goes|gone|went|going|go) by\b`), `"uses", "follows" or "passes"`, nil},
	{words(`\b(the (one|time|call|tick|day|hour|step|look)|those) before\b`), `"the previous"`, nil},
	{words(`\bso many\b`), `"n" or "the given number of"`, nil},
	{words(`\b(for good|for ever)\b`), `"permanently" or "forever"`, nil},
	{words(`\bgives? ([a-z]+ ){0,3}back\b`), `"returns", "releases" or "frees"`, nil},
	{words(`\b(comes?|came|becomes?|became) of\b`), `"results from" or "the result"`, nil},
	{words(`\b(befalls?|befell|whence|wherein|whereof|thereof|whereupon)\b`), `a plain word`, nil},
	{words(`\blook(s|ed)? (whether|which|who|what)\b`), `"checks whether"`, nil},
}

// words compiles a pattern that ignores case and in which a space matches any white space.
func words(pattern string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)` + strings.ReplaceAll(pattern, " ", `\s+`))
}
