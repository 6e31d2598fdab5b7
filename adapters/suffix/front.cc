// One call per decode step for all rows, over arctic-inference's suffix tree.
//
// Compiled on the user's machine together with the library's own suffix_tree.cc (see front.py) and
// called through ctypes, which lets go of Python's interpreter lock meanwhile. Nothing may throw
// through these functions: they return false instead.
//
// The library's look-up walks from the root for every length of the match, builds the draft there
// and keeps the best. Here a context that is itself in the tree is not walked at all: the tree
// remembers where each of its ends stands. Drafts are only scored, the longest match first, and the
// best is written once. The drafts are the same (a test compares them), in a fraction of the time.
// What is needed of the tree is private in its header.

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#define private public
#include "suffix_tree.h"
#undef private

namespace {

// A tree to ask (or none), and the sequence in it that ends as the context does, -1 if none does.
struct Asked {
    SuffixTree* tree;
    int64_t sequence;
};

// A row's look-up: two trees and the end of its context.
struct Row {
    Asked own;
    Asked shared;
    const int32_t* context;
    int64_t context_length;
};
static_assert(sizeof(Row) == 48, "front.py fills rows as six 64-bit numbers");

struct Limits {
    int most;
    float factor;
    float least_probability;

    // Tokens of a draft after a match of this length. The library's own rounding.
    int after(int match_length) const {
        return std::clamp(static_cast<int>(match_length * factor + 1e-6), 0, most);
    }
};

// Where the drafts go: arrays of one row each, the first two `depth` wide.
struct Drafts {
    int32_t* tokens;
    float* probs;
    int32_t* length;
    float* score;
    int32_t* match_length;
    uint8_t* shared;
};

// A place in a tree: after `offset` of the tokens that lead to `node` from its parent.
struct Place {
    Node* node;
    int offset;
};

struct Found {
    SuffixTree* tree = nullptr;
    Place place{};
    float score = 0.0f;
    int match_length = 0;
};

const int32_t* tokens_of(SuffixTree* tree, const Node* node) {
    return tree->_seqs[node->ref_seq].data() + node->ref_idx;
}

// Where `text` ends in the tree if it stands there; a place without a node otherwise.
Place find(SuffixTree* tree, std::span<const int32_t> text) {
    Place at{tree->_root.get(), 0};
    const int32_t* edge = nullptr;
    for (const int32_t token : text) {
        if (at.offset == at.node->length) {
            const auto child = at.node->children.find(token);
            if (child == at.node->children.end()) {
                return {};
            }
            at = {child->second.get(), 0};
            edge = tokens_of(tree, at.node);
        }
        if (edge[at.offset] != token) {
            return {};
        }
        ++at.offset;
    }
    return at;
}

// Follow the likeliest continuation of `at`; `take(node, from, count, probability)` gets its runs
// of tokens of equal path probability.
template <class Take>
void follow(Place at, int most, float least_probability, Take take) {
    float probability = 1.0f;
    while (most > 0 && probability >= least_probability) {
        const int run = std::min(at.node->length - at.offset, most);
        if (run > 0) {
            take(at.node, at.offset, run, probability);
            most -= run;
            at.offset += run;
            continue;
        }
        Node* likeliest = at.node->head_child;
        if (likeliest == nullptr) {
            return;
        }
        probability *= static_cast<float>(likeliest->count) / at.node->count;
        at = {likeliest, 0};
    }
}

float score_of(Place at, int most, float least_probability) {
    float score = 0.0f;
    follow(at, most, least_probability, [&](const Node*, int, int run, float probability) {
        for (int token = 0; token < run; ++token) {
            score += probability;
        }
    });
    return score;
}

// Where the last 1, 2, 3... tokens of the context stand, as many as do; never all of it.
void find_all(const Asked& asked, std::span<const int32_t> context, std::vector<Place>& matches) {
    matches.clear();
    const size_t most = context.empty() ? 0 : context.size() - 1;
    if (asked.sequence >= 0) {
        const auto ends = asked.tree->_active_nodes.find(static_cast<int32_t>(asked.sequence));
        if (ends != asked.tree->_active_nodes.end()) {
            const std::deque<Node*>& longest_first = ends->second;
            const size_t known = std::min(longest_first.size(), most);
            for (size_t length = 1; length <= known; ++length) {
                Node* node = longest_first[longest_first.size() - length];
                matches.push_back({node, node->length});
            }
        }
    }
    while (matches.size() < most) {
        const Place at = find(asked.tree, context.last(matches.size() + 1));
        if (at.node == nullptr) {
            return;
        }
        matches.push_back(at);
    }
}

// The best draft of one tree; of equals the one with the longest match.
Found look_up(const Asked& asked, const Row& row, const Limits& limits,
              std::vector<Place>& matches) {
    find_all(asked, {row.context, static_cast<size_t>(row.context_length)}, matches);
    Found best{asked.tree};
    for (int length = static_cast<int>(matches.size()); length > 0; --length) {
        const int most = limits.after(length);
        if (best.score >= static_cast<float>(most)) {
            break;  // no shorter match can be worth more than its tokens
        }
        const float score = score_of(matches[length - 1], most, limits.least_probability);
        if (score > best.score) {
            best = {asked.tree, matches[length - 1], score, length};
        }
    }
    return best;
}

void write(const Found& found, bool shared, const Limits& limits, int depth, int64_t index,
           const Drafts& into) {
    int32_t* tokens = into.tokens + index * depth;
    float* probs = into.probs + index * depth;
    int count = 0;
    if (found.score > 0.0f) {
        const int most = std::min(limits.after(found.match_length), depth);
        follow(found.place, most, limits.least_probability,
               [&](const Node* node, int from, int run, float probability) {
                   std::copy_n(tokens_of(found.tree, node) + from, run, tokens + count);
                   std::fill_n(probs + count, run, probability);
                   count += run;
               });
    }
    std::fill(tokens + count, tokens + depth, -1);
    std::fill(probs + count, probs + depth, 0.0f);
    into.length[index] = count;
    into.score[index] = found.score;
    into.match_length[index] = found.match_length;
    into.shared[index] = shared;
}

template <class Work>
bool guarded(Work work) noexcept {
    try {
        work();
        return true;
    } catch (...) {
        return false;
    }
}

// Tokens that go to the end of a sequence of a tree.
struct Growth {
    SuffixTree* tree;
    int64_t sequence;
    const int32_t* tokens;
    int64_t count;
};
static_assert(sizeof(Growth) == 32, "front.py fills growths as four 64-bit numbers");

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED SuffixTree* tree_new(int depth) {
    SuffixTree* tree = nullptr;
    guarded([&] { tree = new SuffixTree(depth); });
    return tree;
}

EXPORTED void tree_free(SuffixTree* tree) { delete tree; }

EXPORTED bool tree_extend(SuffixTree* tree, int sequence, const int32_t* tokens, int64_t count) {
    return guarded([&] { tree->extend(sequence, std::span<const int32_t>(tokens, count)); });
}

EXPORTED bool tree_remove(SuffixTree* tree, int sequence) {
    return guarded([&] { tree->remove(sequence); });
}

EXPORTED bool grow(const Growth* rows, int64_t count) {
    return guarded([&] {
        for (const Growth& row : std::span<const Growth>(rows, count)) {
            row.tree->extend(static_cast<int>(row.sequence),
                             std::span<const int32_t>(row.tokens, row.count));
        }
    });
}

EXPORTED bool draft(const Row* rows, int64_t count, Limits limits, int depth, Drafts into) {
    return guarded([&] {
        std::vector<Place> matches;
        for (int64_t index = 0; index < count; ++index) {
            const Row& row = rows[index];
            Found best = look_up(row.own, row, limits, matches);
            bool shared = false;
            if (row.shared.tree != nullptr) {
                const Found other = look_up(row.shared, row, limits, matches);
                shared = other.score > best.score;
                best = shared ? other : best;
            }
            write(best, shared, limits, depth, index, into);
        }
    });
}
