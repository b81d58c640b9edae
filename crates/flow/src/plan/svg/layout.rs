//! Places boxes in layers: each box below the boxes that it needs, with few crossings and straight lines.

use std::collections::HashMap;

/// The free space between two boxes of a layer.
const GAP: f64 = 28.0;
/// The space that a line takes beside boxes.
const LINE: f64 = 10.0;
/// The minimum free space between two layers.
const RISE: f64 = 36.0;
/// The number of rounds that improve the order within layers, and the places of boxes.
const SWEEPS: usize = 12;
/// The minimum number of boxes in a row before a layer gets another row.
const ROW: usize = 8;
/// The maximum number of lines of a block, and of their bends.
pub(super) const MAX_LINES: usize = 50_000;

/// Boxes and lines in their places.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) width: f64,
    pub(super) height: f64,
    /// The left upper corner of each box.
    pub(super) corners: Vec<(f64, f64)>,
    /// The lines in the order of their targets.
    pub(super) lines: Vec<Line>,
}

/// A line from one box to another.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) to: usize,
    /// The path has a vertical piece at each of these: x, from, to.
    pub(super) pieces: Vec<(f64, f64, f64)>,
}

/// A box or a bend of a line.
#[derive(Debug)]
struct Spot {
    width: f64,
    height: f64,
    layer: usize,
    /// The center.
    x: f64,
    /// The connected spots of the layers above and below.
    near: [Vec<usize>; 2],
}

/// Places boxes of these sizes, each with the boxes that it needs. None if there are too many lines.
pub(super) fn place(sizes: &[(f64, f64)], needs: &[&[usize]]) -> Option<Layout> {
    let order = ordered(needs);
    let needs = direct_needs(needs, &order)?;
    let layers = layers_of(&needs, &order);
    let mut spots: Vec<Spot> = sizes
        .iter()
        .zip(&layers)
        .map(|(&(width, height), &layer)| Spot { width, height, layer, x: 0.0, near: Default::default() })
        .collect();
    let routes = routes(&mut spots, &needs)?;
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); layers.iter().max().map_or(0, |last| last + 1)];
    for (spot, Spot { layer, .. }) in spots.iter().enumerate() {
        // A bend is between boxes unless its line pulls it to a side.
        let row = &mut rows[*layer];
        row.insert(if spot < sizes.len() { row.len() } else { row.len() / 2 }, spot);
    }
    reduce_crossings(&spots, &mut rows);
    place_across(&mut spots, &rows);
    Some(place_down(&spots, &rows, sizes.len(), &routes))
}

/// The boxes, each after those that it needs.
fn ordered(needs: &[&[usize]]) -> Vec<usize> {
    let mut missing: Vec<usize> = needs.iter().map(|needs| needs.len()).collect();
    let mut needed_by: Vec<Vec<usize>> = vec![Vec::new(); needs.len()];
    for (one, needs) in needs.iter().enumerate() {
        needs.iter().for_each(|need| needed_by[*need].push(one));
    }
    let mut order: Vec<usize> = (0..needs.len()).filter(|one| missing[*one] == 0).collect();
    let mut next = 0;
    while let Some(done) = order.get(next).copied() {
        next += 1;
        for one in &needed_by[done] {
            missing[*one] -= 1;
            if missing[*one] == 0 {
                order.push(*one);
            }
        }
    }
    order
}

/// The needs that do not follow from other needs. None if there are too many.
fn direct_needs(needs: &[&[usize]], order: &[usize]) -> Option<Vec<Vec<usize>>> {
    let words = needs.len().div_ceil(64);
    // What each box needs, directly or not.
    let mut all = vec![0_u64; words * needs.len()];
    let mut direct: Vec<Vec<usize>> = vec![Vec::new(); needs.len()];
    let mut rank = vec![0; needs.len()];
    order.iter().enumerate().for_each(|(at, one)| rank[*one] = at);
    let mut count = 0;
    for &one in order {
        let mut latest_first = needs[one].to_vec();
        latest_first.sort_by_key(|need| std::cmp::Reverse(rank[*need]));
        for need in latest_first {
            let bit = 1 << (need % 64);
            if all[one * words + need / 64] & bit != 0 {
                continue;
            }
            direct[one].push(need);
            count += 1;
            for word in 0..words {
                all[one * words + word] |= all[need * words + word];
            }
            all[one * words + need / 64] |= bit;
        }
        direct[one].sort_unstable();
    }
    (count <= MAX_LINES).then_some(direct)
}

/// The layer of each box: the longest path to it. A wide layer has several rows, each a layer of its own.
fn layers_of(needs: &[Vec<usize>], order: &[usize]) -> Vec<usize> {
    let mut depths = vec![0; needs.len()];
    for &one in order {
        depths[one] = needs[one].iter().map(|need| depths[*need] + 1).max().unwrap_or(0);
    }
    let mut counts = vec![0; depths.iter().max().map_or(0, |last| last + 1)];
    for depth in &depths {
        counts[*depth] += 1;
    }
    // The first row and the number of boxes in a row.
    let mut first = 0;
    let rows: Vec<(usize, usize)> = counts
        .iter()
        .map(|&count: &usize| {
            let most = ROW.max((2.0 * count as f64).sqrt() as usize);
            let rows = count.div_ceil(most).max(1);
            let own = first;
            first += rows;
            (own, count.div_ceil(rows).max(1))
        })
        .collect();
    let mut seen = vec![0; counts.len()];
    let place = |depth: usize| {
        let (first, length) = rows[depth];
        seen[depth] += 1;
        first + (seen[depth] - 1) / length
    };
    depths.into_iter().map(place).collect()
}

/// Adds the bends of lines over several layers. Lines from one box share their bends, else lines to one box.
/// Returns the spots of each line, by target. None if there are too many.
fn routes(spots: &mut Vec<Spot>, needs: &[Vec<usize>]) -> Option<Vec<Vec<usize>>> {
    let is_long = |spots: &[Spot], from: usize, to: usize| spots[to].layer > spots[from].layer + 1;
    let mut starts = vec![0; needs.len()];
    for (to, needs) in needs.iter().enumerate() {
        needs.iter().filter(|from| is_long(spots, **from, to)).for_each(|from| starts[*from] += 1);
    }
    let mut bends: HashMap<(bool, usize, usize), usize> = HashMap::new();
    let mut routes = Vec::new();
    let mut count = 0;
    for (to, needs) in needs.iter().enumerate() {
        let ends = needs.iter().filter(|from| is_long(spots, **from, to)).count();
        for &from in needs {
            let of_start = starts[from] >= ends;
            let shared = if of_start { from } else { to };
            let mut route = vec![from];
            for layer in spots[from].layer + 1..spots[to].layer {
                let bend = *bends.entry((of_start, shared, layer)).or_insert_with(|| {
                    spots.push(Spot { width: LINE, height: 0.0, layer, x: 0.0, near: Default::default() });
                    spots.len() - 1
                });
                route.push(bend);
            }
            route.push(to);
            count += route.len();
            if count > 2 * MAX_LINES {
                return None;
            }
            for pair in route.windows(2) {
                let (above, below) = (pair[0], pair[1]);
                if !spots[above].near[1].contains(&below) {
                    spots[above].near[1].push(below);
                    spots[below].near[0].push(above);
                }
            }
            routes.push(route);
        }
    }
    Some(routes)
}

/// Orders each layer by the mean places of the connected spots, alternately of the layer above and below.
fn reduce_crossings(spots: &[Spot], rows: &mut [Vec<usize>]) {
    let mut places = vec![0.0; spots.len()];
    let number = |row: &[usize], places: &mut [f64]| {
        row.iter().enumerate().for_each(|(at, spot)| places[*spot] = (at as f64 + 0.5) / row.len() as f64);
    };
    for row in rows.iter() {
        number(row, &mut places);
    }
    for sweep in 0..SWEEPS {
        let side = sweep % 2;
        let count = rows.len();
        for at in 0..count {
            let row = &mut rows[if side == 0 { at } else { count - 1 - at }];
            let mut keyed: Vec<(f64, usize)> = row
                .iter()
                .map(|spot| (mean(&spots[*spot].near[side], &places).unwrap_or(places[*spot]), *spot))
                .collect();
            keyed.sort_by(|one, other| one.0.total_cmp(&other.0));
            *row = keyed.into_iter().map(|(_, spot)| spot).collect();
            number(row, &mut places);
        }
    }
}

fn mean(near: &[usize], places: &[f64]) -> Option<f64> {
    let sum: f64 = near.iter().map(|spot| places[*spot]).sum();
    (!near.is_empty()).then(|| sum / near.len() as f64)
}

/// Sets the centers: each spot as near to its neighbors as the order of its layer allows.
fn place_across(spots: &mut [Spot], rows: &[Vec<usize>]) {
    let mut places = vec![0.0; spots.len()];
    for sweep in 0..=SWEEPS {
        let count = rows.len();
        for at in 0..count {
            let row = &rows[if sweep % 2 == 0 { at } else { count - 1 - at }];
            let wanted: Vec<f64> = row
                .iter()
                .map(|spot| {
                    let sides = [0, 1].map(|side| pull(spots, *spot, side, &places));
                    match (sweep, sides) {
                        (0, [above, _]) => above.unwrap_or_default(),
                        (_, [Some(above), Some(below)]) => f64::midpoint(above, below),
                        (_, [one, other]) => one.or(other).unwrap_or(places[*spot]),
                    }
                })
                .collect();
            for (spot, x) in row.iter().zip(spread(spots, row, &wanted)) {
                places[*spot] = x;
            }
        }
    }
    for (spot, x) in spots.iter_mut().zip(places) {
        spot.x = x;
    }
}

/// The place to which the spots of the layer above or below pull a spot. Bends of one line make a straight line.
fn pull(spots: &[Spot], spot: usize, side: usize, places: &[f64]) -> Option<f64> {
    let Spot { near, .. } = &spots[spot];
    let is_bend = |spot: &usize| spots[*spot].height == 0.0;
    let bends: Vec<usize> = near[side].iter().copied().filter(|one| is_bend(one) && is_bend(&spot)).collect();
    mean(&bends, places).or_else(|| mean(&near[side], places))
}

/// The centers of a row next to the wanted ones, by least squares: spots that would overlap become one group.
fn spread(spots: &[Spot], row: &[usize], wanted: &[f64]) -> Vec<f64> {
    let mut offsets = Vec::with_capacity(row.len());
    let mut offset = 0.0;
    for (at, spot) in row.iter().enumerate() {
        if let Some(before) = at.checked_sub(1).map(|before| &spots[row[before]]) {
            offset += f64::midpoint(before.width, spots[*spot].width) + GAP;
        }
        offsets.push(offset);
    }
    // The sum of the wanted places, their weight, and the number of spots.
    let mut groups: Vec<(f64, f64, usize)> = Vec::new();
    for ((spot, wanted), offset) in row.iter().zip(wanted).zip(&offsets) {
        // A bend of a line is seen more than a box beside the middle of its neighbors.
        let weight = if spots[*spot].height > 0.0 { 1.0 } else { 2.0 };
        let mut group = (weight * (wanted - offset), weight, 1);
        while let Some(before) = groups.pop_if(|before| before.0 / before.1 > group.0 / group.1) {
            group = (group.0 + before.0, group.1 + before.1, group.2 + before.2);
        }
        groups.push(group);
    }
    let starts = groups.into_iter().flat_map(|(sum, weight, count)| std::iter::repeat_n(sum / weight, count));
    starts.zip(offsets).map(|(start, offset)| start + offset).collect()
}

/// Sets the heights of layers, and gives the boxes and lines.
fn place_down(spots: &[Spot], rows: &[Vec<usize>], boxes: usize, routes: &[Vec<usize>]) -> Layout {
    let left = spots.iter().map(|spot| spot.x - spot.width / 2.0).fold(f64::INFINITY, f64::min);
    let right = spots.iter().map(|spot| spot.x + spot.width / 2.0).fold(f64::NEG_INFINITY, f64::max);
    let mut top = 0.0;
    // The top and the bottom of each layer.
    let mut bands = Vec::with_capacity(rows.len());
    for row in rows {
        let height = row.iter().map(|spot| spots[*spot].height).fold(0.0, f64::max);
        bands.push((top, top + height));
        let shifts = row.iter().flat_map(|spot| {
            spots[*spot].near[1].iter().map(|below| (spots[*below].x - spots[*spot].x).abs())
        });
        top += height + RISE + (shifts.fold(0.0, f64::max) / 16.0).min(RISE);
    }
    let (_, height) = bands.last().copied().unwrap_or_default();
    let corner = |spot: &Spot| (spot.x - spot.width / 2.0 - left, bands[spot.layer].0);
    let lines = routes.iter().map(|route| {
        let last = route.len() - 1;
        let pieces = route.iter().enumerate().map(|(at, spot)| {
            let spot = &spots[*spot];
            let (top, bottom) = bands[spot.layer];
            match at {
                0 => (spot.x - left, top + spot.height, bottom),
                _ if at == last => (spot.x - left, top, top),
                _ => (spot.x - left, top, bottom),
            }
        });
        Line { to: route[last], pieces: pieces.collect() }
    });
    Layout {
        width: right - left,
        height,
        corners: spots.iter().take(boxes).map(corner).collect(),
        lines: lines.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(needs: &[&[usize]]) -> Layout {
        let sizes: Vec<(f64, f64)> =
            needs.iter().enumerate().map(|(at, _)| (100.0, 40.0 + at as f64)).collect();
        place(&sizes, needs).unwrap()
    }

    #[test]
    fn boxes_are_below_their_needs_and_never_overlap() {
        // A diamond, a long way beside it, a wide layer, and a box alone, needed before they are listed.
        let wide: Vec<usize> = (7..29).collect();
        let mut needs: Vec<&[usize]> = vec![&[], &[0], &[0], &[1, 2], &[3, 0], &wide, &[]];
        needs.extend((7..29).map(|_| &[4_usize][..]));
        let layout = placed(&needs);
        let size = |at: usize| (100.0, 40.0 + at as f64);
        for (one, needs) in needs.iter().enumerate() {
            let (x, y) = layout.corners[one];
            assert!(x >= 0.0 && y >= 0.0 && x + 100.0 <= layout.width + 0.1, "{one}");
            assert!(y + size(one).1 <= layout.height + 0.1, "{one}");
            for need in *needs {
                assert!(layout.corners[*need].1 + size(*need).1 < y, "{one} is not below {need}");
            }
            for other in 0..one {
                let (a, b) = layout.corners[other];
                let is_apart =
                    (x - a).abs() >= 100.0 + GAP - 0.1 || y >= b + size(other).1 || b >= y + size(one).1;
                assert!(is_apart, "{one} overlaps {other}");
            }
        }
    }

    #[test]
    fn lines_pass_beside_boxes_and_those_that_follow_are_omitted() {
        // 3 needs 0 through 1 and 2; 4 needs 0 alone, and 5 needs 3 and 4.
        let layout = placed(&[&[], &[0], &[1], &[0, 2], &[0], &[3, 4]]);
        let ends: Vec<usize> = layout.lines.iter().map(|line| line.to).collect();
        assert_eq!(ends, [1, 2, 3, 4, 5, 5]);
        for line in &layout.lines {
            let inner = line.pieces.iter().skip(1).rev().skip(1);
            for (x, top, bottom) in inner {
                for (at, (left, y)) in layout.corners.iter().enumerate() {
                    let is_beside = *x < *left || *x > left + 100.0;
                    assert!(
                        is_beside || *bottom < *y || *top > y + 40.0,
                        "a line to {} crosses {at}",
                        line.to
                    );
                }
            }
        }
    }

    #[test]
    fn too_many_lines_are_not_drawn() {
        let sources: Vec<usize> = (0..300).collect();
        let needs: Vec<&[usize]> = (0..600).map(|at| if at < 300 { &[][..] } else { &sources }).collect();
        assert!(place(&vec![(10.0, 10.0); 600], &needs).is_none());
    }
}
