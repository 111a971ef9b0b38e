package nodez

import (
	"mime"
	"strconv"
	"strings"
)

// format is a format of the page.
type format struct {
	name        string // the value of the query parameter "format"
	contentType string
	mediaType   string
}

// The formats. A client that accepts several equally gets the first of them.
var (
	formatJSON = format{"json", "application/json", "application/json"}
	formatHTML = format{"html", "text/html; charset=utf-8", "text/html"}
	formatText = format{"text", "text/plain; charset=utf-8", "text/plain"}
)

func formats() []format { return []format{formatJSON, formatHTML, formatText} }

// formatByName returns the format with the name.
func formatByName(name string) (format, bool) {
	for _, f := range formats() {
		if f.name == name {
			return f, true
		}
	}
	return format{}, false
}

// negotiate returns the format that an Accept header prefers: the one with the highest quality, and
// of these the one that is named most specifically. A client without the header accepts all.
func negotiate(accept string) (format, bool) {
	if strings.TrimSpace(accept) == "" {
		return formatJSON, true
	}
	var best format
	var bestQuality float64
	var bestMatch match
	for _, f := range formats() {
		quality, m := qualityOf(f, accept)
		if quality > bestQuality || quality == bestQuality && quality > 0 && m > bestMatch {
			best, bestQuality, bestMatch = f, quality, m
		}
	}
	return best, bestQuality > 0
}

// match is how specifically a media range names a media type.
type match int

const (
	noMatch match = iota
	matchAll
	matchType
	matchExact
)

// qualityOf returns the quality of a format in an Accept header. The most specific media range that
// matches decides.
func qualityOf(f format, accept string) (quality float64, best match) {
	kind, _, _ := strings.Cut(f.mediaType, "/")
	for part := range strings.SplitSeq(accept, ",") {
		mediaRange, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		m := noMatch
		switch mediaRange {
		case f.mediaType:
			m = matchExact
		case kind + "/*":
			m = matchType
		case "*/*", "*": // some clients send *
			m = matchAll
		}
		if m > best {
			quality, best = qualityParam(params), m
		}
	}
	return quality, best
}

// qualityParam returns the parameter q of a media range, or 1 if it has none that is valid.
func qualityParam(params map[string]string) float64 {
	q, err := strconv.ParseFloat(params["q"], 64)
	if err != nil || !(q >= 0 && q <= 1) { // also not a number
		return 1
	}
	return q
}
