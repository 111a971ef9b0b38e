package adapter

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// query is one alternative of a query template of prometheus-adapter.
type query struct {
	// form is the expression with S for each selector, and without the range of selectors and
	// "by (<<.GroupBy>>)". An example is sum(irate(S)).
	form      string
	selectors []selector // in the order of the S in form
}

// selector selects series.
type selector struct {
	metric   string
	matchers []matcher // without <<.LabelMatchers>>
}

// matcher is a condition on a label. The value is quoted as in PromQL.
type matcher struct{ label, operator, value string }

func (m matcher) String() string { return m.label + m.operator + m.value }

// unquote returns the value without quotes.
func (m matcher) unquote() (string, error) {
	if m.value[0] == '\'' {
		return strconv.Unquote(`"` + strings.ReplaceAll(m.value[1:len(m.value)-1], `"`, `\"`) + `"`)
	}
	return strconv.Unquote(m.value)
}

// String returns the selector in PromQL.
func (s selector) String() string {
	if len(s.matchers) == 0 {
		return s.metric
	}
	matchers := make([]string, len(s.matchers))
	for i, m := range s.matchers {
		matchers[i] = m.String()
	}
	return s.metric + "{" + strings.Join(matchers, ",") + "}"
}

// has reports whether the selector has the matcher, whatever its quotes.
func (s selector) has(label, operator, value string) bool {
	return slices.ContainsFunc(s.matchers, func(m matcher) bool {
		unquoted, err := m.unquote()
		return err == nil && m.label == label && m.operator == operator && unquoted == value
	})
}

// parseQuery parses a query template. It returns more than one query for alternatives, which are
// joined by "or".
//
// It knows as much of PromQL as the templates use. Prometheus' own parser would add 1 MB to the
// server, and would tie the versions of six other modules to those of Prometheus, whose
// vulnerabilities scanners would then report for the server: too much for a command that is used
// once.
func parseQuery(template string) ([]query, error) {
	p := &parser{}
	var err error
	if p.tokens, err = tokenize(template); err != nil {
		return nil, err
	}
	if len(p.tokens) == 0 {
		return nil, errors.New("it is empty")
	}
	var queries []query
	for {
		p.selectors = nil
		form, err := p.binary(1) // "or" has precedence 0
		if err != nil {
			return nil, err
		}
		queries = append(queries, query{form: form, selectors: p.selectors})
		if p.peek() == "" {
			return queries, nil
		}
		if !p.accept("or") {
			return nil, p.unexpected()
		}
	}
}

var tokenForm = regexp.MustCompile(`^(?:` + strings.Join([]string{
	`<<[^<>]*>>`,                  // an action of the template
	`"(?:[^"\\]|\\.)*"`,           // strings
	`'(?:[^'\\]|\\.)*'`,           //
	"`[^`]*`",                     //
	`[a-zA-Z_:][a-zA-Z0-9_:]*`,    // names and keywords
	`(?:[0-9]*\.)?[0-9][0-9a-z]*`, // numbers and durations
	`=~|!~|==|!=|>=|<=`,
	`[-+*/%^()\[\]{},=<>@:]`,
}, "|") + `)`)

var blank = regexp.MustCompile(`^(?:\s+|#[^\n]*)+`)

func tokenize(text string) ([]string, error) {
	var tokens []string
	for {
		text = text[len(blank.FindString(text)):]
		if text == "" {
			return tokens, nil
		}
		token := tokenForm.FindString(text)
		if token == "" {
			return nil, fmt.Errorf("it is not PromQL at %.20q", text)
		}
		text = text[len(token):]
		tokens = append(tokens, token)
	}
}

// parser is a recursive descent parser of PromQL that returns forms.
type parser struct {
	tokens    []string
	selectors []selector
	depth     int
}

// maxDepth bounds the recursion.
const maxDepth = 100

func (p *parser) peek() string {
	if len(p.tokens) == 0 {
		return ""
	}
	return p.tokens[0]
}

func (p *parser) next() string {
	token := p.peek()
	if token != "" {
		p.tokens = p.tokens[1:]
	}
	return token
}

func (p *parser) accept(token string) bool {
	if p.peek() != token {
		return false
	}
	p.next()
	return true
}

func (p *parser) expect(token string) error {
	if p.accept(token) {
		return nil
	}
	return fmt.Errorf("%w, want %q", p.unexpected(), token)
}

func (p *parser) unexpected() error {
	if p.peek() == "" {
		return errors.New("it is not PromQL: it ends too early")
	}
	return fmt.Errorf("it is not PromQL at %q", p.peek())
}

// precedence returns the precedence of a binary operator, or -1.
func precedence(token string) int {
	for i, operators := range [][]string{{"or"}, {"and", "unless"}, {"==", "!=", "<=", "<", ">=", ">"}, {"+", "-"},
		{"*", "/", "%", "atan2"}, {"^"}} {
		if slices.Contains(operators, token) {
			return i
		}
	}
	return -1
}

// binary parses an expression with operators of at least the precedence.
func (p *parser) binary(least int) (string, error) {
	if p.depth++; p.depth > maxDepth {
		return "", errors.New("it is nested too deep")
	}
	defer func() { p.depth-- }()
	left, err := p.operand()
	if err != nil {
		return "", err
	}
	for {
		operator := p.peek()
		level := precedence(operator)
		if level < least {
			return left, nil
		}
		p.next()
		modifiers, err := p.modifiers()
		if err != nil {
			return "", err
		}
		right, err := p.binary(level + 1)
		if err != nil {
			return "", err
		}
		left = fmt.Sprintf("%s %s%s %s", left, operator, modifiers, right)
	}
}

// modifiers parses what may follow a binary operator, such as on(pod) group_left(node).
func (p *parser) modifiers() (string, error) {
	var form strings.Builder
	for slices.Contains([]string{"bool", "on", "ignoring", "group_left", "group_right"}, p.peek()) {
		form.WriteString(" " + p.next())
		if p.peek() == "(" {
			labels, err := p.labels()
			if err != nil {
				return "", err
			}
			form.WriteString("(" + labels + ")")
		}
	}
	return form.String(), nil
}

// labels parses a list of labels in parentheses.
func (p *parser) labels() (string, error) {
	if err := p.expect("("); err != nil {
		return "", err
	}
	var labels []string
	for !p.accept(")") {
		if p.peek() == "" {
			return "", p.unexpected()
		}
		if label := p.next(); label != "," {
			labels = append(labels, label)
		}
	}
	return strings.Join(labels, ","), nil
}

var (
	nameForm   = regexp.MustCompile(`^[a-zA-Z_:]`)
	numberForm = regexp.MustCompile(`^[.0-9]`)
	groupBy    = regexp.MustCompile(`^<<\s*\.GroupBy\s*>>$`)
	matchersOf = regexp.MustCompile(`^<<\s*\.LabelMatchers\s*>>$`)
)

func (p *parser) operand() (string, error) {
	token := p.peek()
	switch {
	case token == "(":
		p.next()
		form, err := p.binary(0)
		if err != nil {
			return "", err
		}
		if strings.ContainsRune(form, ' ') { // an operator
			form = "(" + form + ")"
		}
		if err := p.expect(")"); err != nil {
			return "", err
		}
		return p.suffix(form)
	case token == "-" || token == "+":
		p.next()
		form, err := p.operand()
		return token + form, err
	case numberForm.MatchString(token) || strings.ContainsAny(token[:min(1, len(token))], "\"'`"):
		return p.next(), nil
	case token == "{" || nameForm.MatchString(token):
		if len(p.tokens) > 1 && slices.Contains([]string{"(", "by", "without"}, p.tokens[1]) {
			return p.call(p.next())
		}
		if err := p.selector(); err != nil {
			return "", err
		}
		return p.suffix("S")
	}
	return "", p.unexpected()
}

// call parses the rest of a function call or an aggregation.
func (p *parser) call(name string) (string, error) {
	before, err := p.grouping()
	if err != nil {
		return "", err
	}
	if err := p.expect("("); err != nil {
		return "", err
	}
	var args []string
	for !p.accept(")") {
		arg, err := p.binary(0)
		if err != nil {
			return "", err
		}
		args = append(args, arg)
		if p.peek() != ")" {
			if err := p.expect(","); err != nil {
				return "", err
			}
		}
	}
	after, err := p.grouping()
	if err != nil {
		return "", err
	}
	return p.suffix(name + before + after + "(" + strings.Join(args, ", ") + ")")
}

// grouping parses the labels of an aggregation. Its form is empty for those of the template.
func (p *parser) grouping() (string, error) {
	keyword := p.peek()
	if keyword != "by" && keyword != "without" {
		return "", nil
	}
	p.next()
	labels, err := p.labels()
	if keyword == "by" && groupBy.MatchString(labels) {
		return "", err
	}
	return " " + keyword + "(" + labels + ") ", err
}

func (p *parser) selector() error {
	var s selector
	if p.peek() != "{" {
		s.metric = p.next()
	}
	if p.accept("{") {
		for !p.accept("}") {
			switch token := p.next(); {
			case token == ",", matchersOf.MatchString(token):
			case nameForm.MatchString(token) && len(p.tokens) > 1:
				m := matcher{label: token, operator: p.next(), value: p.next()}
				if !slices.Contains([]string{"=", "!=", "=~", "!~"}, m.operator) || !strings.ContainsAny(m.value[:1], "\"'`") {
					return fmt.Errorf("it is not PromQL at %q", m)
				}
				s.matchers = append(s.matchers, m)
			case token == "":
				return p.unexpected()
			default:
				return fmt.Errorf("%q in a selector is not supported", token)
			}
		}
	}
	p.selectors = append(p.selectors, s)
	return nil
}

// suffix parses what may follow an operand. A plain range of a selector is not part of the form.
func (p *parser) suffix(form string) (string, error) {
	for {
		switch p.peek() {
		case "[":
			var content []string
			for p.next(); p.peek() != "]"; {
				if p.peek() == "" {
					return "", p.unexpected()
				}
				content = append(content, p.next())
			}
			p.next()
			if form != "S" || len(content) != 1 {
				form += "[" + strings.Join(content, "") + "]"
			}
		case "offset", "@":
			form += " " + p.next() + " "
			if p.peek() == "-" {
				form += p.next()
			}
			form += p.next()
		default:
			return form, nil
		}
	}
}
